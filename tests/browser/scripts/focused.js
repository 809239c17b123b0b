() => {
  const node = document.activeElement, style = getComputedStyle(node);
  const isSeen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && node.getBoundingClientRect().bottom > 0;
  return [node.dataset.place ?? null, isSeen];
}
