//! A bar of blocks, for screens.

/// How much of `whole` is `part`, in `width` blocks.
pub fn bar(part: u64, whole: u64, width: usize) -> String {
    let share = part as f64 / whole.max(1) as f64;
    let filled = ((share * width as f64).round() as usize).min(width);
    "█".repeat(filled) + &"░".repeat(width - filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_never_overflow() {
        assert_eq!(bar(0, 0, 40), "░".repeat(40));
        assert_eq!(bar(99, 3, 40), "█".repeat(40));
        assert_eq!(bar(1, 2, 40).chars().filter(|&c| c == '█').count(), 20);
    }
}
