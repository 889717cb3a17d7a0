// SPDX-License-Identifier: Apache-2.0
// Saves charts as pictures and values as CSV.
import { download, fileName } from "./elements.js";

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "paint-order", "font-size", "font-family", "visibility"];
const SCALE = 2;

/** A copy of a picture that looks the same without the page's style sheet. */
function standAlone(svg, width, height) {
  const copy = svg.cloneNode(true);
  const [from, to] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    // Set attributes, because the page allows no inline styles.
    for (const name of STYLES) to[i].setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

export async function savePicture(chart) {
  const { clientWidth: width, clientHeight: height } = chart.plot;
  const style = getComputedStyle(chart.root);
  const keys = [...chart.key.children].map((key) => [key.textContent, getComputedStyle(key.querySelector("i") ?? key).backgroundColor]);
  const top = 28 + 18 * keys.length;
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standAlone(chart.svg, width, height))}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = SCALE * (width + 16);
  canvas.height = SCALE * (height + top + 8);
  const pen = canvas.getContext("2d");
  pen.scale(SCALE, SCALE);
  pen.fillStyle = style.backgroundColor;
  pen.fillRect(0, 0, width + 16, height + top + 8);
  pen.fillStyle = style.color;
  pen.font = `600 14px ${style.fontFamily}`;
  pen.fillText(chart.title.textContent, 12, 20);
  pen.font = `12px ${style.fontFamily}`;
  keys.forEach(([text, color], i) => {
    pen.fillStyle = color;
    pen.fillRect(12, 29 + 18 * i, 9, 9);
    pen.fillStyle = style.color;
    pen.fillText(text, 27, 38 + 18 * i);
  });
  pen.drawImage(picture, 8, top, width, height);
  download(`${fileName(chart.title.textContent)}.png`, canvas.toDataURL("image/png"));
}

const field = (text) => /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;

/** Saves all logged values of these runs as in their files. `ask` fetches an address. */
export async function saveValues(runs, ask) {
  const pieces = ["run,time,step,name,value\n"];
  for (const run of runs) {
    for (let offset = "0"; offset !== null;) {
      const answer = await ask(`csv?run=${run.index}&offset=${offset}`);
      if (!answer?.ok) return false;
      const rows = await answer.text();
      pieces.push(rows.replace(/^(?=.)/gm, () => `${field(run.name)},`));
      offset = answer.headers.get("Next-Offset");
    }
  }
  const address = URL.createObjectURL(new Blob(pieces, { type: "text/csv" }));
  download("values.csv", address);
  URL.revokeObjectURL(address);
  return true;
}
