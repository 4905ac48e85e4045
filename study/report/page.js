// The words of a figure's points at the pointer, and tables that sort by a column. Without it, browsers show the same titles.
const tip = Object.assign(document.createElement("div"), { id: "tip", hidden: true });
document.body.append(tip);
const NEAR = 28;

for (const svg of document.querySelectorAll(".figure svg")) {
  const spots = [...svg.querySelectorAll(".spot")];
  for (const spot of spots) {
    spot.words = spot.querySelector("title").textContent;
    spot.querySelector("title").remove();
  }
  const show = pointed => {
    for (const spot of spots) {
      spot.classList.toggle("here", spot === pointed);
      spot.classList.toggle("same", pointed !== null && spot !== pointed && pointed.dataset.line !== "" && spot.dataset.line === pointed.dataset.line);
    }
    tip.hidden = pointed === null;
    if (pointed === null) return;
    tip.textContent = pointed.words;
    const box = pointed.getBoundingClientRect();
    const left = box.right + tip.offsetWidth + 12 > innerWidth ? box.left - tip.offsetWidth - 8 : box.right + 8;
    tip.style.left = `${Math.max(4, left) + scrollX}px`;
    tip.style.top = `${Math.max(4, Math.min(box.top, innerHeight - tip.offsetHeight - 4)) + scrollY}px`;
  };
  const nearest = event => {
    const { a, d, e, f } = svg.getScreenCTM();
    const away = spot => Math.hypot(a * spot.cx.baseVal.value + e - event.clientX, d * spot.cy.baseVal.value + f - event.clientY);
    const least = spots.reduce((best, spot) => (away(spot) < best[0] ? [away(spot), spot] : best), [NEAR, null]);
    show(least[1]);
  };
  svg.addEventListener("pointermove", nearest);
  svg.addEventListener("pointerdown", nearest);
  svg.addEventListener("pointerleave", () => show(null));
}

const SCALES = { k: 1e3, M: 1e6, G: 1e9, B: 1e9, T: 1e12 };
// The number that a text begins with, NaN without one: 1.2e6 of "1.2M (0.9M to 1.5M)".
const number = text => {
  const plain = text.trim().replace(/,/g, "").replace("−", "-");
  const [, suffix] = /^[-+]?[\d.]+([kMGBT])\b/.exec(plain) ?? [];
  return parseFloat(plain) * (SCALES[suffix] ?? 1);
};

for (const table of document.querySelectorAll("table")) {
  const headings = [...table.querySelectorAll("th")];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const sign = heading.ariaSort === "ascending" ? -1 : 1;
      headings.forEach(other => other.removeAttribute("aria-sort"));
      heading.ariaSort = sign > 0 ? "ascending" : "descending";
      const words = row => row.cells[column].textContent;
      const order = (one, two) => {
        const [first, second] = [number(words(one)), number(words(two))];
        if (isNaN(first) && isNaN(second)) return words(one).localeCompare(words(two));
        return isNaN(first) - isNaN(second) || first - second;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort((one, two) => sign * order(one, two)));
    });
  });
}

addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(fold => (fold.open = true)));
