// Shows code that sends the current request, and a button to copy the code.

import { WRITERS } from "./snippets.js";

const [languages, code, copy] = ["languages", "code", "copy"].map((id) => document.getElementById(id));
const TABS = { ...WRITERS, Answer: formatAnswer };
// Longest text in a displayed response, in characters. Masks and maps are longer, and are displayed in
// part. The copy button copies them in full.
const LONG = 200;
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
    // The clipboard API works only over https and on localhost.
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  copy.textContent = "Copied";
  setTimeout(() => (copy.textContent = "Copy"), 1500);
});

/**
 * Show the code of a request, and the response if there is one. Null clears the code.
 * @param {import("./snippets.js").Asked & {answer?: object} | null} request
 */
export function showCode(request) {
  asked = request;
  write();
}

const chosenLanguage = () => languages.querySelector("input:checked").value;

function write() {
  code.textContent = asked ? TABS[chosenLanguage()](asked) : "";
}

/** Format a response as JSON, with the innermost objects and arrays on one line each. */
function formatAnswer({ answer }) {
  const cut = (_, value) => (typeof value === "string" && value.length > LONG ? `${value.slice(0, 40)}…` : value);
  const text = JSON.stringify(answer, cut, 2) ?? "";
  return text.replace(/[{[]\s+[^{}[\]]*?\s+[}\]]/g, (leaf) => leaf.replace(/\s+/g, " "));
}
