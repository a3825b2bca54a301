/* What the page shows is packed: JSON, in which {"$column": n} stands for the n-th of the columns that follow it. */

export async function inflate(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/* Bytes: two 32-bit lengths (of the directory, of the JSON), both texts, then the columns; each at a multiple of 8. */
export function unpack(buffer) {
  const types = { u1: Uint8Array, i4: Int32Array, f8: Float64Array };
  const [nDirectory, nText] = new Uint32Array(buffer, 0, 2);
  const decode = (start, length) => new TextDecoder().decode(new Uint8Array(buffer, start, length));
  const padded = (length) => 8 * Math.ceil(length / 8);
  let at = 8 + padded(nDirectory) + padded(nText);
  const columns = JSON.parse(decode(8, nDirectory)).map(([type, length]) => {
    const column = new types[type](buffer, at, length);
    at += padded(column.byteLength);
    return column;
  });
  const isColumn = (value) => value !== null && typeof value === "object" && "$column" in value;
  return JSON.parse(decode(8 + padded(nDirectory), nText), (_, value) =>
    isColumn(value) ? columns[value.$column] : value,
  );
}

/* The first place in a sorted array whose value is at least (or, with `after`, more than) `wanted`. */
export function firstPlace(sorted, wanted, after = false) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted || (after && sorted[middle] === wanted)) low = middle + 1;
    else high = middle;
  }
  return low;
}
