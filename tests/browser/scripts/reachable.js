() => [...document.querySelectorAll("a[href], button, input, textarea, summary, [tabindex='0']")]
  .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.disabled && node.type !== "hidden")
  .map((node) => node.dataset.place = String([...document.querySelectorAll("*")].indexOf(node)))
