// Elements as data, and how they get onto the page. What did not change is left alone, so that focus, selection, open
// details and scrolling outlive an answer that comes every two seconds.

const SVG = "http://www.w3.org/2000/svg";
/** Of each element that was drawn here: its key, and its attributes as they were wanted last. */
const drawn = new WeakMap();

const present = (children) => children.flat(Infinity).filter((it) => it || it === 0);

/**
 * An element to be. `key` tells it from its siblings over all renderings, `on…` are listeners, `style` has custom
 * properties: the CSP allows them set one by one, but no `style` attribute. Children that are null, false or "" are left
 * out.
 */
export function h(tag, attributes, ...children) {
  const { key, ...rest } = attributes ?? {};
  return { tag, key, attributes: rest, children: present(children) };
}

/** Makes the children of `parent` those that are wanted. */
export function patch(parent, wanted) {
  const keyed = new Map();
  const stays = new Set(wanted.map((want) => want.key));
  for (const node of [...parent.childNodes]) {
    const key = drawn.get(node)?.key;
    if (key === undefined) continue;
    // Removed first, or all that follow would be moved, which costs them the focus.
    if (stays.has(key)) keyed.set(key, node);
    else node.remove();
  }
  let next = parent.firstChild;
  for (const want of wanted) {
    const found = want.key === undefined ? next : keyed.get(want.key);
    const node = found && fits(found, want) ? found : create(want, parent);
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
    update(node, want);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

/** As `patch` without what is null or false, and the focus stays where it was although its element was moved. */
export function render(parent, wanted) {
  const focused = document.activeElement;
  patch(parent, present(wanted));
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

function fits(node, want) {
  if (typeof want !== "object") return node.nodeType === Node.TEXT_NODE;
  return node.localName === want.tag && drawn.get(node)?.key === want.key;
}

function create(want, parent) {
  if (typeof want !== "object") return document.createTextNode("");
  if (want.tag === "svg" || parent.namespaceURI === SVG) return document.createElementNS(SVG, want.tag);
  return document.createElement(want.tag);
}

function update(node, want) {
  if (typeof want !== "object") {
    const text = String(want);
    if (node.data !== text) node.data = text;
    return;
  }
  const before = drawn.get(node)?.attributes ?? {};
  for (const name of Object.keys(before)) if (!(name in want.attributes)) set(node, name, null);
  for (const [name, value] of Object.entries(want.attributes)) if (before[name] !== value) set(node, name, value);
  drawn.set(node, { key: want.key, attributes: want.attributes });
  patch(node, want.children);
}

function set(node, name, value) {
  if (name.startsWith("on")) {
    node[name] = value;
  } else if (name === "style") {
    for (const [property, text] of Object.entries(value ?? {})) node.style.setProperty(property, text);
  } else if (value === null || value === undefined || value === false) {
    node.removeAttribute(name);
  } else {
    node.setAttribute(name, value === true ? "" : value);
  }
}
