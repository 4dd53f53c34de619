//! Chance from a seed: the same draws on every platform and with every release of a library, as
//! only the generator itself (whose values are fixed by its authors) comes from one, and the
//! functions beyond + - * / and square roots come from `libm`.

use rand_core::{Rng as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

/// One independent stream of chance.
#[derive(Debug, Clone)]
pub(crate) struct Dice(Xoshiro256PlusPlus);

impl Dice {
    /// The stream `no` of a seed. Each shopper has one, so that the choices of one never change those
    /// of another: two algorithms meet the very same crowd.
    pub(crate) fn new(seed: u64, no: u64) -> Self {
        let apart = seed ^ no.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        Self(Xoshiro256PlusPlus::seed_from_u64(apart))
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0 to `end - 1`; 0 if there is nothing to choose from.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((self.unit() * end as f64) as u64).min(end.saturating_sub(1))
    }

    /// True in `percent` of all throws.
    pub(crate) fn percent(&mut self, percent: f64) -> bool {
        self.unit() * 100.0 < percent
    }

    /// Exponential with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.unit())
    }

    /// Log-normal with this median; `sigma` is the spread of the logarithm.
    pub(crate) fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        // Box and Muller's transform, one of its two values.
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.unit()));
        let angle = 2.0 * std::f64::consts::PI * self.unit();
        median * libm::exp(sigma * radius * libm::cos(angle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(draw: impl FnMut() -> f64) -> f64 {
        std::iter::repeat_with(draw).take(50_000).sum::<f64>() / 50_000.0
    }

    #[test]
    fn draws_have_the_means_they_should() {
        let mut dice = Dice::new(1, 2);
        assert!((mean(|| dice.unit()) - 0.5).abs() < 0.01);
        assert!((mean(|| dice.exponential(7.0)) - 7.0).abs() < 0.15);
        // Its mean is median * exp(sigma² / 2).
        let log_normal = mean(|| dice.log_normal(10.0, 0.5));
        assert!((log_normal - 11.33).abs() < 0.15, "{log_normal}");
        assert!((mean(|| dice.below(10) as f64) - 4.5).abs() < 0.1);
        assert_eq!(dice.below(0), 0);
    }

    #[test]
    fn streams_differ_and_repeat() {
        let first = |seed, no| Dice::new(seed, no).unit();
        assert_eq!(first(1, 1).to_bits(), first(1, 1).to_bits());
        assert_ne!(first(1, 1).to_bits(), first(1, 2).to_bits());
        assert_ne!(first(1, 1).to_bits(), first(2, 1).to_bits());
    }
}
