//! Fuzz targets of the public parsers.

#![allow(clippy::unwrap_used)]

mod replicated;
mod requests;
mod texts;
