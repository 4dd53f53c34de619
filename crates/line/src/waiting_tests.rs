//! The bitmap against a plain sorted list.
use super::*;
