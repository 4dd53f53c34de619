//! What the derive makes, and what is refused.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_codec::{Codec, Malformed, decode, encode};
use proptest::prelude::*;

#[derive(Codec, Debug, Clone, PartialEq)]
struct Name(Box<str>);

#[derive(Codec, Debug, Clone, PartialEq)]
enum Shape {
    Point,
    Circle(u32),
    Rectangle {
        width: u16,
        height: u16,
    },
    Group(Vec<Shape>),
    #[codec(since = 2)]
    Named(Name, Box<Shape>),
}

#[derive(Codec, Debug, Clone, PartialEq)]
enum Change<T> {
    Set(T),
    Unset,
}

#[derive(Codec, Debug, Clone, PartialEq)]
#[codec(check = Drawing::check)]
struct Drawing {
    least: u64,
    most: u64,
    shapes: BTreeMap<u8, Shape>,
    tags: BTreeSet<String>,
    change: Option<Change<[u8; 2]>>,
    id: u128,
    result: Result<bool, (u8, u64, String)>,
    #[codec(since = 3)]
    label: Option<Box<str>>,
}

impl Drawing {
    fn check(&self) -> Result<(), &'static str> {
        (self.least <= self.most)
            .then_some(())
            .ok_or("a range that is none")
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let leaf = prop_oneof![
        Just(Shape::Point),
        any::<u32>().prop_map(Shape::Circle),
        any::<(u16, u16)>().prop_map(|(width, height)| Shape::Rectangle { width, height }),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Shape::Group),
            (".*", inner).prop_map(|(name, shape)| Shape::Named(Name(name.into()), shape.into())),
        ]
    })
}

prop_compose! {
    fn drawing()(
        least in any::<u64>(),
        more in any::<u64>(),
        shapes in prop::collection::btree_map(any::<u8>(), shape(), 0..4),
        tags in prop::collection::btree_set(".*", 0..4),
        change in prop::option::of(prop_oneof![
            any::<[u8; 2]>().prop_map(Change::Set),
            Just(Change::Unset),
        ]),
        id in any::<u128>(),
        result in prop_oneof![
            any::<bool>().prop_map(Ok),
            any::<(u8, u64, String)>().prop_map(Err),
        ],
        label in prop::option::of(".*".prop_map(Box::from)),
    ) -> Drawing {
        let most = least.saturating_add(more);
        Drawing { least, most, shapes, tags, change, id, result, label }
    }
}

proptest! {
    #[test]
    fn every_value_comes_back_and_no_other_bytes_are_it(drawing in drawing(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let bytes = encode(&drawing, 3);
        prop_assert_eq!(decode::<Drawing>(&bytes, 3), Ok(drawing.clone()));
        prop_assert!(decode::<Drawing>(&bytes[..at.index(bytes.len())], 3).is_err());
        prop_assert!(decode::<Drawing>(&[&bytes[..], &[byte]].concat(), 3).is_err());
        let mut other = bytes.clone();
        other[at.index(bytes.len())] = byte;
        if let Ok(read) = decode::<Drawing>(&other, 3) {
            prop_assert_eq!(encode(&read, 3), other);
        }
    }

    /// A leader writes the newest format that all members read, and proposes only what that format has.
    #[test]
    fn what_an_earlier_format_has_comes_back_in_it(drawing in drawing(), format in 1_u32..3) {
        let comes_back = decode::<Drawing>(&encode(&drawing, format), format) == Ok(drawing.clone());
        prop_assert_eq!(comes_back, drawing.first_format() <= format);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = decode::<Drawing>(&bytes, 3);
        let _ = decode::<Shape>(&bytes, 3);
    }
}

#[test]
fn values_have_the_bytes_that_the_table_says() {
    let rectangle = Shape::Rectangle {
        width: 1,
        height: 300,
    };
    assert_eq!(encode(&rectangle, 1), [2, 1, 0xac, 2]);
    assert_eq!(
        encode(&Shape::Group(vec![Shape::Point, Shape::Circle(7)]), 1),
        [3, 2, 0, 1, 7]
    );
    assert_eq!(
        encode(&(true, "ab".to_owned(), Some(Change::Set(9_u8))), 1),
        [1, 2, b'a', b'b', 1, 0, 9]
    );
    assert_eq!(
        encode(&u64::MAX, 1),
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]
    );
}

#[test]
fn other_bytes_of_a_value_are_refused() {
    let refused = |bytes: &[u8]| decode::<u64>(bytes, 1).is_err();
    assert!(refused(&[0x80, 0]), "longer than it need be");
    assert!(
        refused(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
        "beyond 64 bits"
    );
    assert!(decode::<u16>(&[0xff, 0xff, 7], 1).is_err());
    assert!(decode::<bool>(&[2], 1).is_err());
    assert!(decode::<BTreeSet<u8>>(&[2, 5, 5], 1).is_err());
    assert!(decode::<BTreeMap<u8, u8>>(&[2, 5, 0, 4, 0], 1).is_err());
    assert!(decode::<String>(&[1, 0xff], 1).is_err());
    let unknown = Malformed("a Shape that this build does not know");
    assert_eq!(decode::<Shape>(&[9], 3), Err(unknown));
    let named = encode(&Shape::Named(Name("a".into()), Shape::Point.into()), 2);
    assert_eq!(
        decode::<Shape>(&named, 1),
        Err(unknown),
        "of a later format"
    );
}

#[test]
fn what_contradicts_itself_is_refused() {
    let bytes = encode(&(5_u64, 4_u64), 1);
    assert_eq!(
        decode::<Drawing>(&[&bytes[..], &[0; 22]].concat(), 1),
        Err(Malformed("a range that is none"))
    );
}

#[test]
fn small_inputs_exhaust_neither_stack_nor_memory() {
    let deep = [[3, 1]; 100_000].concat();
    assert_eq!(
        decode::<Shape>(&deep, 1),
        Err(Malformed("values nested too deeply"))
    );
    let long = encode(&(u64::MAX >> 1), 1);
    assert!(decode::<Vec<Shape>>(&long, 1).is_err());
}
