"""Folders, globs and files that a command line names, as sources in order."""

from pathlib import Path

import pytest

from fovea_preprocess.errors import InvalidOption, NotFound
from fovea_server.offline.sources import find_sources


@pytest.fixture
def tree(tmp_path: Path, monkeypatch) -> Path:
    names = ("10.jpg", "2.JPG", "sub/1.png", "sub/deep/3.webp", "notes.txt", "clip.mp4")
    for name in (*names, ".hidden.jpg", ".cache/4.jpg", "annotated/2.jpg"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def names(*given: object, **options) -> list[str]:
    return [source.name for source in find_sources(list(map(str, given)), **options).files]


def test_a_folder_is_all_images_below_it_in_natural_order(tree):
    found = find_sources(["data"], drawn=tree / "annotated")
    have = [source.name for source in found.files]
    assert have == ["2.JPG", "10.jpg", "sub/1.png", "sub/deep/3.webp"]
    assert [source.stem for source in found.files] == ["2", "10", "sub/1", "sub/deep/3"]
    assert [source.path for source in found.files] == [Path("data", name) for name in have]
    assert (found.skipped, found.listed) == (2, True)


def test_a_glob_takes_images_and_videos(tree):
    drawn = tree / "annotated"
    assert names("data/**/*", drawn=drawn) == [
        "2.JPG", "10.jpg", "clip.mp4", "sub/1.png", "sub/deep/3.webp",
    ]  # fmt: skip
    assert names(tree / "*.mp4") == ["clip.mp4"]
    assert names("data/sub/*.png") == ["1.png"]


def test_names_are_relative_to_the_folder_that_holds_all(tree):
    assert names("data/10.jpg") == ["10.jpg"]
    assert names("data/10.jpg", "data/sub") == ["10.jpg", "sub/1.png", "sub/deep/3.webp"]
    assert names("data/sub/1.png", "data/sub/deep/../1.png", "data/sub") == [
        "1.png", "deep/3.webp",
    ]  # fmt: skip


def test_files_of_one_name_have_stems_of_their_own(tree):
    (tree / "10.png").touch()
    found = find_sources([str(tree / "10.jpg"), str(tree / "10.png")])
    assert [source.stem for source in found.files] == ["10", "10-2"]


def test_no_frame_has_the_name_of_an_image(tree):
    for name in ("clip_000000.jpg", "clip-2_000120.jpg", "clip_1.jpg"):
        (tree / name).touch()
    found = find_sources([str(tree / "clip*")]).files
    stems = {source.name: source.stem for source in found}
    assert stems == {
        "clip.mp4": "clip-3",
        "clip_1.jpg": "clip_1",
        "clip_000000.jpg": "clip_000000",
        "clip-2_000120.jpg": "clip-2_000120",
    }


def test_a_glob_goes_into_no_linked_folder(tree):
    for loop in ("loop", "sub/loop", "sub/deep/up"):
        (tree / loop).symlink_to(tree)
    assert names("data/**/*.png") == names("data/**/1.*") == ["sub/1.png"]
    assert names("**/*.webp") == ["data/sub/deep/3.webp"]
    assert names(tree / "**" / "*.webp") == ["sub/deep/3.webp"]
    assert names("data/**/deep/**") == ["sub/deep/3.webp"]
    # As a shell has it, a link that is named is followed.
    assert names("data/loop/sub/*.png") == ["1.png"]


def test_a_file_may_have_the_name_of_a_glob(tree):
    (tree / "a[1].jpg").touch()
    assert names(tree / "a[1].jpg") == ["a[1].jpg"]


@pytest.mark.parametrize("given", ["data/*.gif", "data/sub/deep/no*", "empty", "absent.jpg"])
def test_nothing_there_is_a_sentence(tree, given):
    (tree.parent / "empty").mkdir()
    with pytest.raises(NotFound, match=r"does not exist|has no image"):
        names(given)


def test_results_and_addresses_are_no_sources(tree):
    with pytest.raises(InvalidOption, match="--out"):
        names("data/annotated/2.jpg", drawn=tree / "annotated")
    with pytest.raises(InvalidOption):
        names("https://h/a.jpg")
