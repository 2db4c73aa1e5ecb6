// The request as code, ready to copy.

import { WRITERS } from "./snippets.js";

const [languages, code, copy] = ["languages", "code", "copy"].map((id) => document.getElementById(id));
const TABS = { ...WRITERS, Answer: formatAnswer };
const LONG = 200; // Masks and maps are cut, for reading; not where they are copied.
let asked = null;

for (const language of Object.keys(TABS)) {
  const tab = document.createElement("label");
  const input = document.createElement("input");
  Object.assign(input, { type: "radio", name: "language", value: language });
  input.checked = language === "curl";
  input.addEventListener("change", write);
  tab.append(input, language);
  languages.append(tab);
}

copy.addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(chosenLanguage() === "Answer" ? JSON.stringify(asked.answer) : code.textContent);
  } catch {
    // Browsers give the clipboard only to pages over https, or on localhost.
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  copy.textContent = "Copied";
  setTimeout(() => (copy.textContent = "Copy"), 1500);
});

/** Show the code of a request, and its answer if there is one; see `snippets.js` for its parts. Null for none. */
export function showCode(request) {
  asked = request;
  write();
}

const chosenLanguage = () => languages.querySelector("input:checked").value;

function write() {
  code.textContent = asked ? TABS[chosenLanguage()](asked) : "";
}

/** An answer as JSON, with a line for what is small. */
function formatAnswer({ answer }) {
  const cut = (_, value) => (typeof value === "string" && value.length > LONG ? `${value.slice(0, 40)}…` : value);
  const text = JSON.stringify(answer, cut, 2) ?? "";
  return text.replace(/[{[]\s+[^{}[\]]*?\s+[}\]]/g, (leaf) => leaf.replace(/\s+/g, " "));
}
