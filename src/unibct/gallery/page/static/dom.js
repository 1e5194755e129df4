// Making elements, and writing numbers. Text is always text here: nothing is parsed as HTML.

export const find = id => document.getElementById(id);

// Return a new element; children that are strings become text.
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svgElement(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes))
    if (value !== null && value !== undefined && value !== false)
      made.setAttribute(name, value === true ? "" : value);
  made.append(...children.filter(child => child !== null));
  return made;
}

// Change a text only if it differs, so that a screen reader does not repeat it.
export function say(id, text) {
  if (find(id).textContent !== text) find(id).textContent = text;
}

export const count = number => number.toLocaleString("en");
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
export const points = difference => (difference < 0 ? "−" : "+") + (100 * Math.abs(difference)).toFixed(1);
export const className = words => words.replaceAll(" ", "-");

export function duration(seconds) {
  for (const [size, name] of [[86400, "days"], [3600, "h"], [60, "min"]])
    if (seconds >= 2 * size) return `${count(Math.round(seconds / size))} ${name}`;
  return seconds >= 1 ? `${Math.round(seconds)} s` : "less than a second";
}
