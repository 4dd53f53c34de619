//! Fuzz targets of the public parsers.

#![allow(clippy::unwrap_used)]

mod passes;
mod replicated;
mod replies;
mod requests;
mod texts;
