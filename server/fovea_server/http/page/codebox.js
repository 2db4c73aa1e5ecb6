// The request as code, ready to copy.

import { WRITERS } from "./snippets.js";

const [languages, code, copy] = ["languages", "code", "copy"].map((id) => document.getElementById(id));
let asked = null;

for (const language of Object.keys(WRITERS)) {
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
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // Browsers give the clipboard only to pages over https, or on localhost.
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  copy.textContent = "Copied";
  setTimeout(() => (copy.textContent = "Copy"), 1500);
});

/** Show the code of a request; see `snippets.js` for its parts. */
export function showCode(request) {
  asked = request;
  write();
}

function write() {
  const language = languages.querySelector("input:checked").value;
  code.textContent = asked ? WRITERS[language](asked) : "";
}
