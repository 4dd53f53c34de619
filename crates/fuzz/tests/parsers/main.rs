//! Fuzz targets of the public parsers.

#![allow(clippy::unwrap_used)]

mod passes;
mod replicated;
mod requests;
mod texts;
