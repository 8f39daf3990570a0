// Runs a plan page in node on a fake of the browser's document, moves every slider, and prints what it saw.
const html = require("fs").readFileSync(0, "utf8");
const data = html.split('id="plan-data">')[1].split("</script>")[0];
const scripts = [...html.matchAll(/<script>\n([\s\S]*?)<\/script>/g)].map((match) => match[1]);
const inputs = [], byId = {};
const element = (id) => ({
  id, textContent: id === "plan-data" ? data : "", innerHTML: "", dataset: {}, listeners: [], parts: {},
  setAttribute() {}, append() {}, insertAdjacentHTML() {},
  addEventListener(_, listener) { this.listeners.push(listener); },
  querySelector(name) {
    if (!this.parts[name]) {
      this.parts[name] = element(name);
      if (name === "input") inputs.push(this.parts[name]);
    }
    return this.parts[name];
  },
});
globalThis.document = {
  getElementById: (id) => (byId[id] ??= element(id)), createElement: () => element("new"), body: element("body"),
};
new Function(scripts.join("\n"))();
const broken = new Set();
const check = (move) => Object.values(byId).filter((each) => each.id !== "plan-data")
  .filter((each) => /NaN|undefined|Infinity/.test(each.innerHTML + each.textContent)).forEach((each) => broken.add(`${each.id} ${move}`));
check("at first");
inputs.forEach((input, index) => [0, 137, 1000].forEach((place) => {
  input.value = place;
  input.listeners.forEach((listener) => listener());
  check(`slider ${index} at ${place}`);
}));
console.log(JSON.stringify({agrees: document.body.dataset.agrees, sliders: inputs.length, broken: [...broken]}));
