//! `Stat`, the 68 bytes of facts about a node that most replies carry.

use crate::zk::record::records;

records! {
    /// Facts about a node, in wire order.
    #[derive(Copy)]
    pub struct Stat {
        /// zxid of the creation.
        pub czxid: i64,
        /// zxid of the last change of the data.
        pub mzxid: i64,
        /// Creation, milliseconds since the epoch.
        pub ctime: i64,
        /// Last change of the data, milliseconds since the epoch.
        pub mtime: i64,
        /// Changes of the data.
        pub version: i32,
        /// Changes of the list of children.
        pub cversion: i32,
        /// Changes of the ACL.
        pub aversion: i32,
        /// Session that owns the node, 0 when it is not ephemeral.
        pub ephemeral_owner: i64,
        /// Bytes of data; 0 for null and for empty.
        pub data_length: i32,
        /// Number of children.
        pub num_children: i32,
        /// zxid of the last change of the list of children.
        pub pzxid: i64,
    }
}

impl Stat {
    /// Bytes on the wire.
    pub const LEN: usize = 68;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zk::record::Record;

    #[test]
    fn field_order_and_size() {
        let stat = Stat {
            czxid: 1,
            mzxid: 2,
            ctime: 3,
            mtime: 4,
            version: 5,
            cversion: 6,
            aversion: 7,
            ephemeral_owner: 8,
            data_length: 9,
            num_children: 10,
            pzxid: 11,
        };
        let bytes = stat.encode();
        assert_eq!(bytes.len(), Stat::LEN);
        assert_eq!(Stat::MIN_LEN, Stat::LEN);
        let last_byte_of_field = [7, 15, 23, 31, 35, 39, 43, 51, 55, 59, 67];
        for (number, &at) in (1u8..).zip(&last_byte_of_field) {
            assert_eq!(bytes[at], number, "field {number}");
        }
        assert_eq!(bytes.iter().filter(|b| **b != 0).count(), 11);
        assert_eq!(Stat::decode(bytes), Ok(stat));
    }
}
