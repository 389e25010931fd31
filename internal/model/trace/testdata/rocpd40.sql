-- Turns the database of rocpd.sql into one of schema version 4.0: the same, and a table of times
DROP VIEW `rocpd_kernel_dispatch`;
CREATE TABLE `rocpd_info_category_0198aa_7f` ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "name" TEXT NOT NULL, "extdata" JSONB DEFAULT "{}" NOT NULL);
-- Their numbers are not those of the strings.
INSERT INTO `rocpd_info_category_0198aa_7f` ("id", "name") SELECT 100 + id, string FROM `rocpd_string_0198aa_7f` WHERE id IN (2, 7, 8, 14, 16);
UPDATE `rocpd_event_0198aa_7f` SET category_id = 100 + category_id;
CREATE TABLE `rocpd_track_0198aa_7f` ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "nid" INTEGER NOT NULL, "ppid" INTEGER, "pid" INTEGER, "tid" INTEGER, "agent_id" INTEGER, "queue_id" INTEGER, "stream_id" INTEGER, "name_id" INTEGER);
INSERT INTO `rocpd_track_0198aa_7f` ("id", "nid", "pid", "tid") VALUES (1, 1, 77, 78), (2, 1, 77, 79);
INSERT INTO `rocpd_track_0198aa_7f` ("id", "nid", "pid", "agent_id", "queue_id", "stream_id") VALUES (3, 1, 77, 2, 1, 0), (4, 1, 77, NULL, NULL, 0);
CREATE TABLE `rocpd_timestamp_0198aa_7f` ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "value" BIGINT NOT NULL, "phase" INTEGER CHECK ("phase" IN (0, 1, 2)), "track_id" INTEGER);
INSERT INTO `rocpd_timestamp_0198aa_7f` ("id", "value", "phase") SELECT 0 + 2 * id, "start", 1 FROM `rocpd_region_0198aa_7f` UNION ALL SELECT 0 + 2 * id + 1, "end", 2 FROM `rocpd_region_0198aa_7f`;
CREATE TABLE new ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "track_id" INTEGER NOT NULL, "start_id" INTEGER NOT NULL, "end_id" INTEGER NOT NULL, "name_id" INTEGER, "event_id" INTEGER);
INSERT INTO new ("id", "track_id", "start_id", "end_id", "name_id", "event_id") SELECT id, tid - 77, 0 + 2 * id, 0 + 2 * id + 1, name_id, event_id FROM `rocpd_region_0198aa_7f`;
DROP TABLE `rocpd_region_0198aa_7f`;
ALTER TABLE new RENAME TO `rocpd_region_0198aa_7f`;
INSERT INTO `rocpd_timestamp_0198aa_7f` ("id", "value", "phase") SELECT 100 + 2 * id, "start", 1 FROM `rocpd_kernel_dispatch_0198aa_7f` UNION ALL SELECT 100 + 2 * id + 1, "end", 2 FROM `rocpd_kernel_dispatch_0198aa_7f`;
CREATE TABLE new ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "track_id" INTEGER NOT NULL, "start_id" INTEGER NOT NULL, "end_id" INTEGER NOT NULL, "kernel_id" INTEGER, "dispatch_id" INTEGER, "event_id" INTEGER);
INSERT INTO new ("id", "track_id", "start_id", "end_id", "kernel_id", "dispatch_id", "event_id") SELECT id, 3, 100 + 2 * id, 100 + 2 * id + 1, kernel_id, dispatch_id, event_id FROM `rocpd_kernel_dispatch_0198aa_7f`;
DROP TABLE `rocpd_kernel_dispatch_0198aa_7f`;
ALTER TABLE new RENAME TO `rocpd_kernel_dispatch_0198aa_7f`;
INSERT INTO `rocpd_timestamp_0198aa_7f` ("id", "value", "phase") SELECT 200 + 2 * id, "start", 1 FROM `rocpd_memory_copy_0198aa_7f` UNION ALL SELECT 200 + 2 * id + 1, "end", 2 FROM `rocpd_memory_copy_0198aa_7f`;
CREATE TABLE new ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "track_id" INTEGER NOT NULL, "start_id" INTEGER NOT NULL, "end_id" INTEGER NOT NULL, "name_id" INTEGER, "dst_agent_id" INTEGER, "src_agent_id" INTEGER, "size" INTEGER, "event_id" INTEGER);
INSERT INTO new ("id", "track_id", "start_id", "end_id", "name_id", "dst_agent_id", "src_agent_id", "size", "event_id") SELECT id, 4, 200 + 2 * id, 200 + 2 * id + 1, name_id, dst_agent_id, src_agent_id, size, event_id FROM `rocpd_memory_copy_0198aa_7f`;
DROP TABLE `rocpd_memory_copy_0198aa_7f`;
ALTER TABLE new RENAME TO `rocpd_memory_copy_0198aa_7f`;
