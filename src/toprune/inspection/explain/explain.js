"use strict";
(() => {
  const slider = document.getElementById("layer");
  const shown = document.getElementById("shown");
  const tip = document.getElementById("tip");
  const tokens = [...document.querySelectorAll(".t")];
  const steps = [...document.querySelectorAll(".steps li")];
  let pointed = null;  // the token whose tooltip is open

  const fade = () => {
    const layer = Number(slider.value);
    for (const token of tokens) {
      token.classList.toggle("gone", Number(token.dataset.last) < layer - 1);
    }
    for (const step of steps) {
      step.classList.toggle("now", Number(step.dataset.layer) === layer - 1);
    }
    shown.textContent = `${layer} of ${slider.max}`;
    slider.setAttribute("aria-valuetext", `layer ${shown.textContent}`);
  };

  const hide = () => {
    if (pointed) pointed.removeAttribute("aria-describedby");
    tip.hidden = true;
    pointed = null;
  };

  const show = (token) => {
    hide();
    pointed = token;
    tip.textContent = token.dataset.tip;
    tip.hidden = false;
    token.setAttribute("aria-describedby", "tip");
    const at = token.getClientRects()[0], box = tip.getBoundingClientRect();
    const above = at.top - box.height - 6;
    const left = Math.min(at.left, document.documentElement.clientWidth - box.width - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above >= 8 ? above : at.bottom + 6}px`;
  };

  const move = (token, event) => {
    const all = [...token.closest(".tokens").querySelectorAll(".t")];
    const here = all.indexOf(token);
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: all.length - 1 };
    if (event.key === "Escape") hide();
    if (!(event.key in to)) return;
    event.preventDefault();
    const next = all[Math.min(Math.max(to[event.key], 0), all.length - 1)];
    token.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  };

  for (const token of tokens) {
    token.addEventListener("pointerenter", () => show(token));
    token.addEventListener("pointerleave", hide);
    token.addEventListener("click", () => show(token));
    token.addEventListener("focus", () => show(token));
    token.addEventListener("blur", hide);
    token.addEventListener("keydown", (event) => move(token, event));
  }
  document.addEventListener("scroll", hide, { passive: true });
  slider.addEventListener("input", fade);
  fade();
})();
