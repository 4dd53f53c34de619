//! The page's colours, each in a light and a dark variant.
//!
//! Pictures are drawn in the light variant. A style sheet overrides the `fill` and `stroke`
//! attributes of an SVG, so one rule per colour is all that dark mode takes.

use std::fmt::Write as _;

use plotters::style::RGBColor;

/// A colour by name; `var(--name)` in the style sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Colour {
    name: &'static str,
    light: u32,
    dark: u32,
}

const fn colour(name: &'static str, light: u32, dark: u32) -> Colour {
    Colour { name, light, dark }
}

pub(crate) const PAPER: Colour = colour("paper", 0xFFFFFF, 0x15181C);
pub(crate) const PANEL: Colour = colour("panel", 0xF3F5F7, 0x1F242A);
pub(crate) const INK: Colour = colour("ink", 0x1F2328, 0xE6E9ED);
pub(crate) const FAINT: Colour = colour("faint", 0x59636E, 0xA3ADB8);
pub(crate) const GRID: Colour = colour("grid", 0xDDE1E6, 0x363D45);
pub(crate) const BLUE: Colour = colour("blue", 0x0069B4, 0x6CB6FF);
pub(crate) const GREEN: Colour = colour("green", 0x16803C, 0x57C97A);
pub(crate) const ORANGE: Colour = colour("orange", 0xC25700, 0xFFA657);
pub(crate) const RED: Colour = colour("red", 0xC62A2F, 0xFF7B72);
pub(crate) const PURPLE: Colour = colour("purple", 0x7A4FB5, 0xC8A6FF);
pub(crate) const GREY: Colour = colour("grey", 0x7B858F, 0x8D97A1);

const ALL: [Colour; 16] = [
    PAPER, PANEL, INK, FAINT, GRID, ORANGE, RED, LANES[0], LANES[1], LANES[2], LANES[3], LANES[4],
    LANES[5], LANES[6], LANES[7], GREY,
];

/// One for each lane that a line can have; without those that stand for the compared algorithm.
pub(crate) const LANES: [Colour; nowserving_line::LANES_MAX] = [
    BLUE,
    GREEN,
    PURPLE,
    colour("pink", 0xBF3D8E, 0xFF8AD0),
    colour("teal", 0x007F86, 0x4CCBD3),
    colour("brown", 0x85592B, 0xD9A871),
    colour("olive", 0x6B7000, 0xC5CB4F),
    colour("slate", 0x4A5F8A, 0x9DB2E0),
];

impl Colour {
    /// As a picture is drawn with it.
    pub(crate) fn rgb(self) -> RGBColor {
        let [_, red, green, blue] = self.light.to_be_bytes();
        RGBColor(red, green, blue)
    }

    /// As a picture names it.
    pub(crate) fn hex(self) -> String {
        format!("#{:06X}", self.light)
    }

    /// As the style sheet names it.
    pub(crate) fn var(self) -> String {
        format!("var(--{})", self.name)
    }
}

/// The rules that give all colours their light or dark variant, in text and in pictures.
pub(crate) fn css() -> String {
    let mut light = String::new();
    let mut dark = String::new();
    let mut pictures = String::new();
    // Writing to a string can't fail.
    for Colour {
        name,
        light: in_light,
        dark: in_dark,
    } in ALL
    {
        let _ = write!(light, "--{name}:#{in_light:06X};");
        let _ = write!(dark, "--{name}:#{in_dark:06X};");
        for attribute in ["fill", "stroke"] {
            let _ = writeln!(
                pictures,
                "svg [{attribute}=\"#{in_light:06X}\"]{{{attribute}:var(--{name})}}"
            );
        }
    }
    format!(
        ":root{{color-scheme:light dark;{light}}}\n\
         @media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{pictures}"
    )
}
