"""The style and the script of the page that explains."""

STYLE = """
:root {
  --gone: #6c747d;
  --s0: #ffffff; --s1: #edf4fd; --s2: #d9e9fb; --s3: #bedaf8; --s4: #9ec8f5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --gone: #8b95a0;
    --s0: #12161b; --s1: #16222f; --s2: #182f48; --s3: #1b3e63; --s4: #1f5085;
  }
}
.bar {
  position: sticky; top: 0; z-index: 2; margin: 1rem -1rem 0; padding: .7rem 1rem .6rem;
  background: var(--ground); border-bottom: 1px solid var(--rule);
}
.bar label { font-weight: 600; }
.slide { display: flex; align-items: center; gap: .8rem; }
.slide input { flex: 1; min-width: 0; height: 1.75rem; margin: 0; accent-color: var(--pruned); }
.slide output { min-width: 4.2rem; text-align: right; font-variant-numeric: tabular-nums; }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: .35rem 0 0; font-size: .85rem; }
.key span span { padding: .05rem .35rem; border-radius: .2rem; }
article {
  margin: 1.5rem 0 0; padding: 1rem 1.1rem 1.1rem; background: var(--panel);
  border: 1px solid var(--rule); border-radius: .6rem;
}
article h2 { margin: 0; font-size: 1.05rem; }
.top { display: flex; flex-wrap: wrap; align-items: baseline; gap: .2rem .9rem; }
.verdict { color: var(--soft); }
.verdict.same { color: var(--good); }
.verdict.other { color: var(--bad); font-weight: 600; }
.said {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .7rem;
  margin: .7rem 0 0;
}
.said div {
  padding: .5rem .75rem; background: var(--ground); border: 1px solid var(--rule);
  border-top: 3px solid var(--dense); border-radius: .4rem; overflow-wrap: anywhere;
}
.said div + div { border-top-color: var(--pruned); }
.said dt { color: var(--soft); font-size: .85rem; }
.said dd { margin: 0; font-size: 1.05rem; }
.tokens {
  margin: .8rem 0 0; padding: .8rem .9rem; background: var(--ground);
  border: 1px solid var(--rule); border-radius: .4rem; line-height: 2;
}
.tokens p { max-width: none; margin: 0; white-space: pre-wrap; }
.tokens p + p { margin-top: .5rem; padding-top: .5rem; border-top: 1px dashed var(--rule); }
.tokens .role { display: block; color: var(--soft); font-size: .8rem; line-height: 1.4; }
.t {
  padding: .14em .05em; border-radius: .2rem; cursor: default; color: var(--ink);
  transition: color .2s, background-color .2s;
}
.t:hover { box-shadow: 0 0 0 1px var(--pruned); }
.t:focus-visible { outline-offset: 0; }
.t.own { font: .78em/1 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; padding: .2em; }
.s0 { background: var(--s0); } .s1 { background: var(--s1); } .s2 { background: var(--s2); }
.s3 { background: var(--s3); } .s4 { background: var(--s4); }
.t.answer { border-bottom: 2px solid var(--pruned); }
.t.gone { color: var(--gone); background: transparent; }
.t.gone.merged { text-decoration: underline dotted; text-underline-offset: .25em; }
.caption { margin: .8rem 0 .3rem; color: var(--soft); font-size: .85rem; }
.steps { display: flex; flex-wrap: wrap; gap: .3rem .25rem; margin: 0; padding: 0; }
.steps li {
  flex: 1; min-width: 1.7rem; max-width: 5rem; list-style: none; text-align: center;
  font-size: .8rem;
}
.steps svg { height: 2rem; fill: var(--dense); border-bottom: 1px solid var(--rule); }
.steps b { display: block; font-weight: 500; font-variant-numeric: tabular-nums; }
.steps i { display: block; font-style: normal; color: var(--soft); line-height: 1.2; }
.steps .now svg { fill: var(--pruned); }
.steps .now b { font-weight: 700; color: var(--pruned); }
#tip {
  position: fixed; z-index: 3; max-width: min(22rem, calc(100vw - 1rem)); padding: .45rem .65rem;
  background: var(--ink); color: var(--ground); border-radius: .4rem; font-size: .85rem;
  line-height: 1.45; white-space: pre-line; pointer-events: none; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums;
}
#tip[hidden] { display: none; }
@media (max-width: 30rem) {
  article { padding: .8rem .75rem; }
  .slide output { min-width: 0; }
  .key { gap: .2rem .7rem; font-size: .8rem; }
}
@media (prefers-reduced-motion: reduce) { .t { transition: none; } }
@media print { .bar { position: static; } .slide { display: none; } }
"""

SCRIPT = """
"use strict";
(() => {
  const slider = document.getElementById("layer");
  const told = document.getElementById("told");
  const tip = document.getElementById("tip");
  const tokens = [...document.querySelectorAll(".t")];
  const steps = [...document.querySelectorAll(".steps li")];
  let shown = null;

  const fade = () => {
    const layer = Number(slider.value);
    for (const token of tokens) {
      token.classList.toggle("gone", Number(token.dataset.last) < layer - 1);
    }
    for (const step of steps) {
      step.classList.toggle("now", Number(step.dataset.layer) === layer - 1);
    }
    told.textContent = `${layer} of ${slider.max}`;
    slider.setAttribute("aria-valuetext", `layer ${told.textContent}`);
  };

  const hide = () => {
    if (shown) shown.removeAttribute("aria-describedby");
    tip.hidden = true;
    shown = null;
  };

  const show = (token) => {
    hide();
    shown = token;
    tip.textContent = token.dataset.tip;
    tip.hidden = false;
    token.setAttribute("aria-describedby", "tip");
    const at = token.getClientRects()[0], own = tip.getBoundingClientRect();
    const above = at.top - own.height - 6;
    const left = Math.min(at.left, document.documentElement.clientWidth - own.width - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above >= 8 ? above : at.bottom + 6}px`;
  };

  const move = (token, event) => {
    const mine = [...token.closest(".tokens").querySelectorAll(".t")];
    const here = mine.indexOf(token);
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: mine.length - 1 };
    if (event.key === "Escape") hide();
    if (!(event.key in to)) return;
    event.preventDefault();
    const next = mine[Math.min(Math.max(to[event.key], 0), mine.length - 1)];
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
"""
