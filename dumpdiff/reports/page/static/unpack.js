"use strict";
/* Reads what packed_tables.py wrote: bytes -> {tables, data}. A column is {kind, values, at(row)}; at gives number or string. */

/* The bytes in the file; a served page has none and asks its server for them. */
async function readPacked(text) {
  if (text) return fromBase64(text);
  const response = await fetch("packed");
  if (!response.ok) throw new Error(await response.text());
  return response.arrayBuffer();
}

async function unpack(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const { strings } = header;
  const forms = { number: Float32Array, integer: Int32Array, text: Uint32Array };
  let at = 4 + length;
  const tables = {};
  for (const [name, { rows, columns }] of Object.entries(header.tables)) {
    const table = (tables[name] = { rows, columns: {}, strings });
    for (const [key, kind] of Object.entries(columns)) {
      const values = new forms[kind](buffer, at, rows);
      at += 4 * rows;
      table.columns[key] = { kind, values, at: kind === "text" ? (row) => strings[values[row]] : (row) => values[row] };
    }
  }
  return { tables, data: header.data };
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}
