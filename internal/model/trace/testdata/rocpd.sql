PRAGMA page_size = 512;
CREATE TABLE `rocpd_string_0198aa_7f` ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "string" TEXT NOT NULL UNIQUE ON CONFLICT ABORT);
CREATE TABLE `rocpd_info_agent_0198aa_7f` ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL,
    "type" TEXT CHECK ("type" IN ('CPU', 'GPU')), "name" TEXT, -- given by the user
    "product_name" TEXT, "extdata" JSONB DEFAULT "{}" NOT NULL);
CREATE TABLE `rocpd_info_kernel_symbol_0198aa_7f` ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "kernel_name" TEXT, "display_name" TEXT);
CREATE TABLE `rocpd_event_0198aa_7f` ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "category_id" INTEGER, "stack_id" INTEGER, "parent_stack_id" INTEGER,
    "correlation_id" INTEGER, "extdata" JSONB DEFAULT "{}" NOT NULL, FOREIGN KEY (category_id) REFERENCES `rocpd_string_0198aa_7f` (id) ON UPDATE CASCADE);
CREATE TABLE `rocpd_region_0198aa_7f` ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL, "tid" INTEGER NOT NULL,
    "start" BIGINT NOT NULL, "end" BIGINT NOT NULL, "name_id" INTEGER NOT NULL, "event_id" INTEGER, "extdata" JSONB DEFAULT "{}" NOT NULL);
CREATE TABLE `rocpd_kernel_dispatch_0198aa_7f` ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL, "tid" INTEGER,
    "agent_id" INTEGER NOT NULL, "kernel_id" INTEGER NOT NULL, "dispatch_id" INTEGER NOT NULL, "queue_id" INTEGER NOT NULL, "stream_id" INTEGER NOT NULL, "start" BIGINT NOT NULL, "end" BIGINT NOT NULL, "event_id" INTEGER);
CREATE TABLE `rocpd_memory_copy_0198aa_7f` ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "0198aa-7f" NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL, "tid" INTEGER,
    "start" BIGINT NOT NULL, "end" BIGINT NOT NULL, "name_id" INTEGER NOT NULL, "dst_agent_id" INTEGER, "src_agent_id" INTEGER, "size" INTEGER NOT NULL, "queue_id" INTEGER, "stream_id" INTEGER, "event_id" INTEGER);
CREATE VIEW `rocpd_kernel_dispatch` AS SELECT * FROM `rocpd_kernel_dispatch_0198aa_7f`;
INSERT INTO `rocpd_string_0198aa_7f` ("id", "string") VALUES (1, ''), (2, 'HIP_RUNTIME_API'), (3, 'hipLaunchKernel'), (4, 'hipMemcpyAsync'), (5, 'hipStreamSynchronize'), (6, 'hsa_signal_wait_scacquire'),
    (7, 'KERNEL_DISPATCH'), (8, 'MEMORY_COPY_HOST_TO_DEVICE'), (9, 'hipGetDevice'), (10, 'hipGraphLaunch'), (11, 'hipEventRecord'), (12, 'hipStreamWaitEvent'), (13, '__hipPushCallConfiguration'), (14, 'MARKER_CORE_RANGE_API'), (15, 'roctxThreadRangeA'), (16, 'MARKER_CONTROL_API');
INSERT INTO `rocpd_info_agent_0198aa_7f` ("id", "nid", "pid", "type", "name", "product_name") VALUES (0, 1, 77, 'CPU', 'cpu', 'Test CPU'), (2, 1, 77, 'GPU', 'gfx942', 'Test MI300X'), (3, 1, 77, 'GPU', 'gfx942', '');
INSERT INTO `rocpd_info_kernel_symbol_0198aa_7f` ("id", "kernel_name", "display_name") VALUES (1, '_Z4gemm', 'gemm(float*)'), (2, '_Z4bias', '');
-- Events 101 to 112: the stack is that of the call, for an operation that of the call that launched it.
INSERT INTO `rocpd_event_0198aa_7f` ("id", "category_id", "stack_id") VALUES (101, 2, 1), (102, 2, 2), (103, 2, 3), (104, 2, 4), (105, 2, 5), (106, 2, 6), (107, 7, 2), (108, 8, 1), (109, 7, 4), (110, 7, 4), (111, 8, 3), (112, 8, 3), (113, 2, 7), (114, 2, 8), (115, 8, 3), (116, 2, 9);
INSERT INTO `rocpd_region_0198aa_7f` ("id", "nid", "pid", "tid", "start", "end", "name_id", "event_id") VALUES
    (1, 1, 77, 78, 5000000, 5006000, 4, 101), (9, 1, 77, 78, 5006200, 5006300, 13, 116), (2, 1, 77, 78, 5007000, 5012000, 3, 102), (6, 1, 77, 78, 5012500, 5013000, 9, 106), (4, 1, 77, 78, 5014000, 5018000, 10, 104),
    (3, 1, 77, 78, 5019000, 5024000, 4, 103), (5, 1, 77, 78, 5025000, 5090000, 5, 105), (7, 1, 77, 78, 5026000, 5089000, 6, 113), (8, 1, 77, 79, 5030000, 5030500, 11, 114);
INSERT INTO `rocpd_kernel_dispatch_0198aa_7f` ("id", "nid", "pid", "tid", "agent_id", "kernel_id", "dispatch_id", "queue_id", "stream_id", "start", "end", "event_id") VALUES
    (1, 1, 77, 78, 2, 1, 1, 1, 0, 5015000, 5045000, 107), (2, 1, 77, 78, 2, 2, 2, 1, 0, 5046000, 5050000, 109), (3, 1, 77, 78, 2, 1, 3, 1, 0, 5051000, 5061000, 110);
INSERT INTO `rocpd_memory_copy_0198aa_7f` ("id", "nid", "pid", "tid", "start", "end", "name_id", "dst_agent_id", "src_agent_id", "size", "stream_id", "event_id") VALUES
    (1, 1, 77, 78, 5008000, 5014000, 8, 2, 0, 65536, 0, 108), (2, 1, 77, 78, 5062000, 5066000, 8, 0, 2, 4096, 0, 111), (3, 1, 77, 78, 5067000, 5069000, 8, 3, 2, 8192, 0, 112), (4, 1, 77, 78, 5067000, 5069000, 8, 0, 0, 8192, 0, 115);
-- Ranges of ROCTx: a training step, a layer in it, one without a text, and a text that is no JSON.
INSERT INTO `rocpd_event_0198aa_7f` ("id", "category_id", "stack_id", "extdata") VALUES (117, 14, 10, '{
    "message": "ProfilerStep#1"
}'), (118, 14, 11, '{"message": "aten::mm, seq = 3, op_id = 7"}'), (119, 16, 12, '{}'), (120, 14, 13, 'half a text'), (121, 2, 14, '{"message": "not of ROCTx"}');
INSERT INTO `rocpd_region_0198aa_7f` ("id", "nid", "pid", "tid", "start", "end", "name_id", "event_id") VALUES
    (10, 1, 77, 78, 4999000, 5091000, 15, 117), (11, 1, 77, 78, 5006500, 5012200, 15, 118), (12, 1, 77, 78, 5006500, 5012200, 15, 119), (13, 1, 77, 78, 5006500, 5012200, 15, 120), (14, 1, 77, 78, 5090500, 5090700, 9, 121);
