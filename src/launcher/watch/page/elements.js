// SPDX-License-Identifier: Apache-2.0
// Elements. What comes from a run is put in as text, never as markup.

export const byId = (id) => document.getElementById(id);

export function make(tag, names, ...children) {
  const element = document.createElement(tag);
  if (names) element.className = names;
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function makeButton(names, text, action) {
  const button = make("button", names, text);
  button.type = "button";
  button.addEventListener("click", action);
  return button;
}

export function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Saves what the address leads to. */
export function download(name, address) {
  const link = make("a");
  link.href = address;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
}

export const fileName = (text) => text.replace(/[^\w.-]+/g, "_").slice(0, 80) || "chart";
