/* Headings come before pages that have a word in their text. The four numbers are Sphinx's own. */

var Scorer = {
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([, , , , score, , kind]) => score + (kind === "title" ? 100 : 0),
};
