/* Numbers, names and elements as a person reads them. Text from files goes through textContent or `plain`. */

export function threeDigits(value) {
  const size = Math.abs(value);
  return value.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

export function bytes(value) {
  if (Math.abs(value) < 1000) return `${Math.round(value)} B`;
  for (const [name, unit] of [
    ["KiB", 2 ** 10],
    ["MiB", 2 ** 20],
    ["GiB", 2 ** 30],
  ]) {
    if (Math.abs(value) < 999.5 * unit) return `${threeDigits(value / unit)} ${name}`;
  }
  return `${threeDigits(value / 2 ** 40)} TiB`;
}

export function time(ns) {
  for (const [name, unit] of [
    ["s", 1e9],
    ["ms", 1e6],
    ["\u00b5s", 1e3],
  ]) {
    if (Math.abs(ns) >= 0.9995 * unit) return `${threeDigits(ns / unit)} ${name}`;
  }
  return `${Math.round(ns)} ns`;
}

/* Of bytes times seconds. */
export function byteSeconds(value) {
  return `${bytes(value)}\u00b7s`;
}

export function count(value) {
  return value.toLocaleString("en-US");
}

export function kindName(kind) {
  return kind.replaceAll("_", "\u00a0");
}

export function percent(part, whole) {
  return `${((100 * part) / Math.max(whole, 1)).toFixed(1)}\u00a0%`;
}

/* The unit in which an axis up to `most` is easy to read: its name and its size. */
export function byteUnit(most) {
  return (
    [
      ["GiB", 2 ** 30],
      ["MiB", 2 ** 20],
      ["KiB", 2 ** 10],
    ].find(([, unit]) => most >= unit) || ["B", 1]
  );
}

export function timeUnit(most) {
  return (
    [
      ["s", 1e9],
      ["ms", 1e6],
      ["\u00b5s", 1e3],
    ].find(([, unit]) => most >= 2 * unit) || ["ns", 1]
  );
}

/* Plotly reads some markup in labels; this is the text as it stands. */
export function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/* The end of a text, from where a part of it begins. */
export function shortened(text, most) {
  if (text.length <= most) return text;
  const end = text.slice(1 - most);
  const part = end.indexOf(".");
  return `\u2026${part >= 0 && part < end.length - 1 ? end.slice(part) : end}`;
}

/* What sorts names: a number in one counts as a number, so that h.2 comes before h.10. */
export const byNumber = new Intl.Collator("en", { numeric: true }).compare;

/* An element with a sentence in which no option of a command is broken. */
export function sentence(tag, text) {
  const made = element(tag);
  for (const [place, part] of text.split(/((?:ebbtide \w+ )?--[a-z][\w-]*(?: \d+%)?)/).entries())
    made.append(place % 2 ? element("span", part, { class: "option" }) : part);
  return made;
}

export function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

export function button(text, label, onClick) {
  const made = element("button", text, { type: "button", "aria-label": label });
  made.addEventListener("click", onClick);
  return made;
}
