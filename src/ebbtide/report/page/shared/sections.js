/* A page's sections, and how it begins. Each script of a page's folder adds its section with `addSection`. */

import { inflate, unpack } from "./data.js";
import { followWindow } from "./paper.js";
import { element } from "./words.js";

const MEASURED = "measured";

const sections = [];

/* A section is
   id       its element's, which links and tests name
   title    its heading, and its link at the page's head
   place    a number: sections stand in this order
   needs    names of the page's data; where one of them is null or empty, there is no such section
   origins  (data) -> how its figures were obtained, which stands beside its heading
   body     its markup, into which no data is put
   draw     (data, element) -> nothing: fills the element when those of all sections are there */
export function addSection(section) {
  sections.push(section);
}

function isThere(data, name) {
  if (!(name in data)) throw new Error(`a section needs "${name}", which is no part of the page's data`);
  return data[name] !== null && data[name].length !== 0;
}

function badge(origin) {
  return element("span", origin, { class: origin === MEASURED ? "badge" : "badge modelled" });
}

function elementOf({ id, title, origins, body }, data) {
  const part = element("section", "", { id });
  part.innerHTML = body;
  const heading = element("h2", title);
  for (const origin of new Set(origins(data))) heading.append(badge(origin));
  part.prepend(heading);
  return part;
}

function show(data) {
  document.getElementById("source").textContent = data.source;
  followWindow();
  sections.sort((one, other) => one.place - other.place);
  const shown = sections.filter(({ needs }) => needs.every((name) => isThere(data, name)));
  const parts = shown.map((section) => elementOf(section, data));
  document.querySelector("main").append(...parts);
  const links = shown.map(({ id, title }) => element("a", title, { href: `#${id}` }));
  document.getElementById("contents").append(...links);
  shown.forEach(({ draw }, number) => {
    draw(data, parts[number]);
  });
}

async function main() {
  const trouble = document.getElementById("trouble");
  if (typeof DecompressionStream === "undefined") {
    trouble.textContent = "This page needs a browser of 2023 or newer: its data is compressed.";
    return;
  }
  trouble.textContent = "Unpacking \u2026";
  trouble.classList.add("working");
  try {
    const library = element("script", new TextDecoder().decode(await inflate("library")));
    document.head.append(library);
    show(unpack(await inflate("data")));
    trouble.remove();
  } catch (error) {
    trouble.classList.remove("working");
    trouble.textContent = `This page is damaged, or its browser cannot show it: ${error.message}`;
    throw error;
  }
  document.documentElement.dataset.ready = "true";
}

addEventListener("DOMContentLoaded", main); // all scripts have run by then, so all sections are added
