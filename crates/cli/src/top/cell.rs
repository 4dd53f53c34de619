//! Pieces of a screen: numbers and words of a given width, and their colours.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// One row of the screen.
pub type Row = Line<'static>;

/// The styles of a screen; without colours only bold and reversed text is left.
#[derive(Debug, Clone, Copy)]
pub struct Palette {
    pub colour: bool,
}

impl Palette {
    fn colour(self, colour: Color) -> Style {
        match self.colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    pub fn good(self) -> Style {
        self.colour(Color::Green)
    }

    pub fn warn(self) -> Style {
        self.colour(Color::Yellow)
    }

    pub fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub fn dim(self) -> Style {
        self.colour(Color::DarkGray)
    }

    pub fn name(self) -> Style {
        self.colour(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// A row in one style.
pub fn row(text: impl Into<String>, style: Style) -> Row {
    Line::from(span(text, style))
}

pub fn span(text: impl Into<String>, style: Style) -> Span<'static> {
    let text: String = text.into();
    Span::styled(text, style)
}

/// The text, cut or filled up to this number of characters.
pub fn left(text: &str, width: usize) -> String {
    let text = cut(text, width);
    format!("{text:<width$}")
}

/// As [`left`], but the text is at the right.
pub fn right(text: &str, width: usize) -> String {
    let text = cut(text, width);
    format!("{text:>width$}")
}

/// At most so many characters; the last one shows that some are missing.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept = text.chars().take(width.saturating_sub(1));
    kept.chain(std::iter::once('…')).take(width).collect()
}

/// The text in rows of at most so many characters, parted between words where there are some.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut rows = vec![String::new()];
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        while let Some(row) = rows.last_mut() {
            let used = row.chars().count();
            let space = usize::from(used > 0);
            if used + space + word.len() <= width {
                row.extend(std::iter::repeat_n(' ', space).chain(word));
                break;
            }
            // A word that fits no row is parted anywhere.
            if used == 0 {
                let rest = word.split_off(width);
                row.extend(word);
                word = rest;
            }
            rows.push(String::new());
        }
    }
    rows
}

/// A count in at most five characters: `99999`, `1234k`, `99M`.
pub fn short(count: u64) -> String {
    match count {
        0..100_000 => count.to_string(),
        100_000..10_000_000 => format!("{}k", count / 1_000),
        10_000_000..10_000_000_000 => format!("{}M", count / 1_000_000),
        _ => format!("{}G", count / 1_000_000_000),
    }
}

/// A rate in at most five characters.
pub fn rate(per_second: Option<f64>) -> String {
    match per_second {
        None => "-".to_owned(),
        Some(rate) if rate < 99.95 => format!("{rate:.1}"),
        Some(rate) => short(rate.round() as u64),
    }
}

/// A wait in at most six characters, in its largest unit of which there are two or more, rounded up.
pub fn wait(ms: u64) -> String {
    const MINUTE: u64 = 60_000;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match ms {
        0..120_000 => format!("{}s", ms.div_ceil(1_000)),
        120_000..7_200_000 => format!("{}min", ms.div_ceil(MINUTE)),
        7_200_000..172_800_000 => format!("{}h", ms.div_ceil(HOUR)),
        _ => format!("{}d", short(ms.div_ceil(DAY))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_width() {
        assert_eq!(left("shop", 6), "shop  ");
        assert_eq!(right("17", 4), "  17");
        assert_eq!(left("a-long-name", 6), "a-lon…");
        assert_eq!(cut("日本語", 2), "日…");
        assert_eq!(cut("ab", 0), "");
    }

    #[test]
    fn long_texts_are_wrapped() {
        for (text, width, rows) in [
            ("", 5, &[""][..]),
            ("seats 5, by ann", 8, &["seats 5,", "by ann"]),
            ("a  b", 5, &["a b"]),
            ("x abcdefgh ij", 3, &["x", "abc", "def", "gh", "ij"]),
            ("日本語", 2, &["日本", "語"]),
            ("ab", 0, &["a", "b"]),
        ] {
            assert_eq!(wrapped(text, width), rows, "{text}");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (count, text) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (9_999_999, "9999k"),
            (10_000_000, "10M"),
            (12_000_000_000, "12G"),
        ] {
            assert_eq!(short(count), text);
        }
        for (per_second, text) in [
            (None, "-"),
            (Some(0.0), "0.0"),
            (Some(99.94), "99.9"),
            (Some(99.96), "100"),
            (Some(1_234.4), "1234"),
        ] {
            assert_eq!(rate(per_second), text);
        }
        for (ms, text) in [
            (0, "0s"),
            (1, "1s"),
            (119_000, "119s"),
            (120_000, "2min"),
            (7_199_000, "120min"),
            (7_200_001, "3h"),
            (172_800_000, "2d"),
        ] {
            assert_eq!(wait(ms), text);
        }
    }
}
