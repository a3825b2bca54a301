/* What all pages share: their header, their sections, and how they begin. A page has a function `show(data)`. */

const MEASURED = "measured";

function badge(origin) {
  return element("span", origin, { class: origin === MEASURED ? "badge" : "badge modelled" });
}

function header(data) {
  document.getElementById("source").textContent = data.source;
  const facts = document.getElementById("facts");
  for (const [name, value] of data.facts) {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value));
    facts.append(pair);
  }
}

function open(section, origins = []) {
  const part = document.getElementById(section);
  part.hidden = false;
  const heading = part.querySelector("h2");
  const link = element("a", heading.textContent, { href: `#${section}` });
  document.getElementById("contents").append(link);
  for (const origin of new Set(origins)) heading.append(badge(origin));
}

async function main() {
  const trouble = document.getElementById("trouble");
  if (typeof DecompressionStream === "undefined") {
    trouble.textContent = "This page needs a browser of 2023 or newer: its data is compressed.";
    return;
  }
  trouble.textContent = "Unpacking \u2026";
  try {
    const library = element("script", new TextDecoder().decode(await inflate("library")));
    document.head.append(library);
    show(unpack(await inflate("data")));
    trouble.remove();
  } catch (error) {
    trouble.textContent = `This page is damaged, or its browser cannot show it: ${error.message}`;
    throw error;
  }
  document.documentElement.dataset.ready = "true";
}
