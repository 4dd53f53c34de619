#![allow(clippy::unwrap_used)]

mod clocks;
mod group;
mod replay;
mod rig;
mod rules;
mod standing;
