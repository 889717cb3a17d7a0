// SPDX-License-Identifier: Apache-2.0
// Creates elements. Strings from runs are inserted as text, never as markup.

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
  button.onclick = action;
  return button;
}

// Shortened names keep their last letters, because names often differ only there.
const TAIL = 9;
export const LONG_NAME = 24;

/** A name that the style sheet shortens if needed, a long one in the middle. */
export function makeName(name) {
  if (name.length <= LONG_NAME) return make("span", "short", make("span", "", name));
  return make("span", "short", make("span", "", name.slice(0, -TAIL)), make("span", "", name.slice(-TAIL)));
}

/** Marks an element, so that `fill` finds it again at any position among the children. */
export function keyed(key, element) {
  element.dataset.key = key;
  return element;
}

function takeOver(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  // Keep elements open that the user has opened.
  for (const name of old.getAttributeNames()) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) {
    if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
  }
  for (const name of ["onclick", "onchange", "checked"]) if (old[name] !== fresh[name]) old[name] = fresh[name];
  fill(old, ...fresh.childNodes);
}

/**
 * Gives `parent` these children. Elements that are already there are updated, not replaced: they
 * keep the focus, selected text, scroll positions and a press of the pointer.
 */
export function fill(parent, ...children) {
  const keyOf = (node) => `${node.nodeName} ${node.dataset?.key ?? ""}`;
  const there = new Map();
  for (const old of parent.childNodes) there.set(keyOf(old), [...there.get(keyOf(old)) ?? [], old]);
  const focused = document.activeElement;
  const wanted = children.map((fresh) => {
    const old = there.get(keyOf(fresh))?.shift();
    if (old) takeOver(old, fresh);
    return old ?? fresh;
  });
  for (const rest of [...there.values()].flat()) rest.remove();
  let at = parent.firstChild;
  for (const node of wanted) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  // Moving an element removes its focus.
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

export function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Saves the content of an address as a file. */
export function download(name, address) {
  const link = make("a");
  link.href = address;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
}

export const fileName = (text) => text.replace(/[^\w.-]+/g, "_").slice(0, 80) || "chart";
