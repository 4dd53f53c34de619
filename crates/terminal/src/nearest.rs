//! Names that exist, for an error about one that does not.

/// At most this many names are suggested.
const NAMES_MAX: usize = 3;
/// Names that are less similar (1 is the same name) are not called near.
const SIMILARITY_MIN: f64 = 0.8;

/// Names that exist, [`NAMES_MAX`] at most.
#[derive(Debug, PartialEq)]
pub enum Names {
    /// Those that are similar, best first.
    Near(Vec<String>),
    /// None is similar: some of the names, and how many more there are.
    Others(Vec<String>, usize),
}

impl std::fmt::Display for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Names::Near(names) => write!(f, "the nearest: {}", names.join(", ")),
            Names::Others(names, _) if names.is_empty() => write!(f, "there are none"),
            Names::Others(names, 0) => write!(f, "there are: {}", names.join(", ")),
            Names::Others(names, more) => {
                write!(f, "there are: {} and {more} more", names.join(", "))
            }
        }
    }
}

/// Of these names the nearest, or some if none is near.
pub fn names_for(wanted: &str, mut names: Vec<String>) -> Names {
    let similarity = |name: &String| strsim::jaro_winkler(wanted, name);
    names.sort_by(|a, b| similarity(b).total_cmp(&similarity(a)).then(a.cmp(b)));
    let near = names
        .iter()
        .take_while(|name| similarity(name) >= SIMILARITY_MIN)
        .count();
    if near > 0 {
        names.truncate(near.min(NAMES_MAX));
        return Names::Near(names);
    }
    let more = names.len().saturating_sub(NAMES_MAX);
    names.truncate(NAMES_MAX);
    Names::Others(names, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_come_first_and_others_only_if_none_is_near() {
        let names =
            |list: &str| -> Vec<String> { list.split_whitespace().map(str::to_owned).collect() };
        let all = || names("concert shop-2 shop-1 booth-1 a");
        assert_eq!(
            names_for("shp-1", all()),
            Names::Near(names("shop-1 shop-2"))
        );
        assert_eq!(
            names_for("shop-9", all()),
            Names::Near(names("shop-1 shop-2"))
        );
        assert_eq!(names_for("x", names("b a")), Names::Others(names("a b"), 0));
        assert_eq!(
            names_for("x", names("d c b a")),
            Names::Others(names("a b c"), 1)
        );
        assert_eq!(names_for("x", vec![]), Names::Others(vec![], 0));
    }
}
