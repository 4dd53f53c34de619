// Renders the page as the gateway does: minijinja, the catalogue laid over the English one, a shop's folder laid over both.
import { existsSync, readFileSync, readdirSync, statSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { Environment } from "minijinja-js/dist/node/minijinja_js.js";

export const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..");
export const json = (path) => JSON.parse(readFileSync(path, "utf8"));
export const languages = ["en", "zh-Hant", "ja", "de", "ar"];
export const previews = readdirSync(join(ROOT, "preview")).filter((f) => !f.startsWith("_")).map((f) => f.slice(0, -5));

export const merge = (under, over) => {
  if (under?.constructor !== Object || over?.constructor !== Object) return over === undefined ? under : over;
  return Object.fromEntries([...new Set([...Object.keys(under), ...Object.keys(over)])].map((k) => [k, merge(under[k], over[k])]));
};

const files = (dir) => readdirSync(dir).flatMap((f) => statSync(join(dir, f)).isDirectory() ? files(join(dir, f)) : [join(dir, f)]);

function environment(shop) {
  const env = new Environment();
  const add = (dir, prefix) => existsSync(dir)
    && files(dir).forEach((f) => env.addTemplate(prefix + relative(dir, f), readFileSync(f, "utf8")));
  add(join(ROOT, "templates"), "");
  add(join(ROOT, "templates"), "default/");
  if (shop) add(join(shop, "templates"), "");
  return env;
}

export function catalogue(lang, shop) {
  const layers = ["en", lang].flatMap((l) => [join(ROOT, "catalogues"), shop && join(shop, "catalogues")]
    .filter(Boolean).map((dir) => join(dir, `${l}.json`))).filter(existsSync).map(json);
  return layers.reduce(merge, {});
}

const cached = new Map();
export function render(preview, lang = "en", { shop, over = {} } = {}) {
  if (!cached.has(shop)) cached.set(shop, environment(shop));
  const data = typeof preview === "string" ? json(join(ROOT, "preview", `${preview}.json`)) : preview;
  const base = json(join(ROOT, "preview", "_base.json"));
  const listed = languages.map((l) => ({ lang: l, name: catalogue(l, shop).name, url: `?lang=${l}` }));
  const context = merge({ ...base, languages: listed, t: catalogue(lang, shop) }, merge(data, over));
  return cached.get(shop).renderTemplate("page.html", context);
}
