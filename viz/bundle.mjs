// Bundles viz/scripts into viz/assets/page.js, which every page holds: `npm run bundle`; a path after
// `--` is written instead. The first line of the bundle
// names a hash of its sources, so that a test can tell without node whether the bundle is current.

import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { build } from "esbuild";

const folder = new URL("scripts/", import.meta.url);
const hash = createHash("sha256");
const names = readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".js"));
for (const name of names.sort()) hash.update(`${name}\0`).update(readFileSync(new URL(name, folder)));
await build({
  entryPoints: [new URL("main.js", folder).pathname],
  outfile: process.argv[2] ?? new URL("assets/page.js", import.meta.url).pathname,
  absWorkingDir: new URL("..", import.meta.url).pathname,
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  banner: { js: `// Made from viz/scripts by \`npm run bundle\`; do not edit. Sources: ${hash.digest("hex")}` },
});
