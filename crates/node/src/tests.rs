use super::*;

#[test]
fn the_command_names_a_number_only_if_it_can_be_replaced() {
    let members = Members::begin(&[1, 2, 4], 9);
    let removed = Members {
        first: [1, 2, 3, 4].into(),
        ..members.clone()
    };
    let candidate = Candidate {
        disk_id: 0x9204_9069_54ad_98bb,
        number: 3,
        ..Candidate::default()
    };
    for (members, command) in [
        (&members, "replace-node 3 9204906954ad98bb"),
        (&removed, "add-node 9204906954ad98bb"),
    ] {
        let command = format!("nowserving cluster {command}");
        assert_eq!(command_for(&candidate, members), command);
    }
}
