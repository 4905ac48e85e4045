// The theme of the address, before anything is drawn; without one it is the system's.
document.documentElement.dataset.theme = new URLSearchParams(location.search).get("theme") ?? "";
