#!/bin/sh
# Packs the package, and runs all tests on the unpacked tarball, in a real browser.
set -eu
cd "$(dirname "$0")"
here=$(pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
[ -d node_modules ] || npm ci --no-audit --no-fund --loglevel=error
npm pack --silent --pack-destination "$folder"
tar -xzf "$folder"/nowserving-browser-*.tgz -C "$folder"
PACKAGE="$folder/package" node --test --test-reporter=spec test/*.test.mjs
