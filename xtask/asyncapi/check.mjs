// Checks docs/asyncapi.yaml by AsyncAPI's own parser: errors fail, all else is printed.

import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import asyncapi from '@asyncapi/parser';

const path = fileURLToPath(new URL('../../docs/asyncapi.yaml', import.meta.url));
const parser = new asyncapi.Parser();
const { document, diagnostics } = await parser.parse(await readFile(path, 'utf8'), { source: path });
const severities = ['error', 'warning', 'information', 'hint'];
for (const { severity, code, message, path: at, range } of diagnostics) {
  console.error(`${severities[severity]} ${code} in line ${range.start.line + 1}, ${at.join('.')}: ${message}`);
}
if (!document || diagnostics.some(({ severity }) => severity === 0)) {
  process.exit(1);
}
const operations = document.operations().all();
console.log(`docs/asyncapi.yaml: ${operations.length} operations, ${document.messages().all().length} messages`);
