"""A button that puts a text on the clipboard in one click."""

from __future__ import annotations

import streamlit as st

_HTML = '<button type="button"></button><span role="status"></span>'
_CSS = """
button {
  font: inherit; font-weight: 600; cursor: pointer; padding: 0.3rem 0.9rem; border-radius: 0.5rem;
  color: var(--st-background-color); background: var(--st-primary-color); border: 1px solid var(--st-primary-color);
}
button:focus-visible { outline: 2px solid var(--st-text-color); outline-offset: 2px; }
span { margin-left: 0.7rem; font-size: 0.85rem; color: var(--st-text-color); }
"""
# Without a secure context (a plain address other than this machine's) there is no clipboard to write to, only the old
# command that copies a selection.
_JS = """
export default function ({ data, parentElement }) {
  const button = parentElement.querySelector("button"), said = parentElement.querySelector("span");
  button.textContent = data.label;
  const old = () => {
    const area = document.createElement("textarea");
    area.value = data.text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    button.focus();
    if (!done) throw new Error("refused");
  };
  button.onclick = async () => {
    try {
      if (navigator.clipboard) await navigator.clipboard.writeText(data.text); else old();
      said.textContent = "Copied.";
    } catch (error) {
      said.textContent = "The browser refused: copy the text by hand.";
    }
  };
}
"""
_button = st.components.v2.component("gapscope_copy", html=_HTML, css=_CSS, js=_JS)


def copy_button(label: str, text: str, key: str) -> None:
    """A button called ``label`` that copies ``text``; nothing of it is read as markup."""
    _button(key=key, data={"label": label, "text": text}, height="content", width="content")
