() => {
  const faults = [];
  const shown = (node) => node.checkVisibility({ visibilityProperty: true }) && !node.closest(".unseen");
  const say = (what, node) => faults.push(`${what}: ${node.outerHTML.slice(0, 120)}`);

  if (!document.documentElement.lang) faults.push("the page has no language");
  if (!document.title) faults.push("the page has no title");
  if (document.querySelectorAll("main").length !== 1) faults.push("there is not one main landmark");
  const headings = [...document.querySelectorAll("h1, h2, h3, h4")].filter(shown).map((node) => Number(node.tagName[1]));
  if (headings.filter((level) => level === 1).length !== 1) faults.push("there is not one first heading");
  headings.forEach((level, i) => { if (level > (i ? headings[i - 1] : 0) + 1) faults.push(`heading ${i} skips a level`); });

  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  if (new Set(ids).size !== ids.length) faults.push("an id is used twice");
  for (const node of document.querySelectorAll("[aria-labelledby], [aria-describedby], [for]"))
    for (const name of ["aria-labelledby", "aria-describedby", "for"])
      if (node.hasAttribute(name) && !document.getElementById(node.getAttribute(name))) say(`${name} leads nowhere`, node);
  for (const node of document.querySelectorAll("img")) if (!node.hasAttribute("alt")) say("an image has no name", node);
  for (const node of document.querySelectorAll("svg"))
    if (node.getAttribute("role") !== "img" || !node.getAttribute("aria-label")) say("a picture has no name", node);
  for (const node of document.querySelectorAll("input, textarea, select, progress"))
    if (!node.labels || !node.labels.length) say("a field has no label", node);
  for (const node of document.querySelectorAll("a, button, summary")) if (!node.textContent.trim()) say("a control has no name", node);
  for (const node of document.querySelectorAll("a")) if (!node.getAttribute("href")) say("a link leads nowhere", node);
  for (const node of document.querySelectorAll("[style], [onclick], [onload]")) say("an attribute that the policy forbids", node);

  const parts = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let place = node; place; place = place.parentElement) {
      const colour = parts(getComputedStyle(place).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
      if (colour[3] > 0) return null;
    }
    return [255, 255, 255];
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !shown(node) || node.closest("script, style, noscript, option")) continue;
    const style = getComputedStyle(node), ground = behind(node);
    if (!ground) { say("a text stands on what can be seen through", node); continue; }
    const [high, low] = [light(parts(style.color)), light(ground)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < (isLarge ? 3 : 4.5)) say(`contrast ${contrast.toFixed(2)}`, node);
  }
  return faults;
}
