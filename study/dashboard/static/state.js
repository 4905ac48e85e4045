// The address holds the state of every control, and what the server answered is kept until something changes.

export const state = () => new URLSearchParams(location.search);

// The value of a control, or a default where the address has none.
export const value = (name, usual = "") => state().get(name) ?? usual;

// An address: these parameters and the theme. Parameters that are null are left out.
export function address(parameters) {
  const theme = value("theme", null);
  const all = { ...parameters, ...(theme === null ? {} : { theme }) };
  const kept = Object.entries(all).filter(([, one]) => one !== null && one !== undefined && one !== "");
  return `?${new URLSearchParams(kept)}`;
}

// Change some parameters of the address in place; null removes one.
export function change(parameters) {
  const next = state();
  for (const [name, one] of Object.entries(parameters)) {
    if (one === null || one === undefined) next.delete(name);
    else next.set(name, one);
  }
  history.replaceState(null, "", `?${next}`);
}

// Names in one parameter: commas divide them, and a comma of a name is doubled.
export const joined = names => [...names].map(name => name.replaceAll(",", ",,")).join(",");
export const parted = words => words.replaceAll(",,", "\0").split(",").filter(Boolean).map(part => part.replaceAll("\0", ","));

const kept = new Map();

// What the server answers, kept by its address. A refusal is thrown with its problems.
export function ask(name, parameters = {}) {
  const given = Object.entries(parameters).filter(([, one]) => one !== "" && one !== null && one !== undefined);
  const url = `/api/${name}?${new URLSearchParams(given)}`;
  if (!kept.has(url)) {
    const answer = fetch(url).then(async response => {
      if (response.status === 403) throw new Error(await response.text());
      const body = await response.json();
      if (!response.ok) throw new Error(body.problems.join("\n"));
      return body;
    }).catch(error => {
      kept.delete(url);
      throw error instanceof TypeError ? new Error("The server does not answer: it was stopped, or this machine is busy.") : error;
    });
    kept.set(url, answer);
  }
  return kept.get(url);
}

export const forget = () => kept.clear();
