/*
 * Sharing mode: the process uses a part of a GPU under the limits of an agent, which
 * hook/SHARE.md describes. DXPU_SHARE names the agent's socket. The states of a
 * process in sharing mode are:
 *
 *   off ---cuInit succeeds, the agent answers---> on ---exit---> over
 *    ^                                            |
 *    +--------------------fork, in the child------+
 *
 * and while it is on, those of its connection:
 *
 *   up <---WELCOME--- greeting <---connect--- down
 *    +--------socket closed, heartbeat too old---^
 *
 * Invariant: the sum of "held" of all processes of a share never exceeds what the
 * agent granted, and a call that takes memory is preceded by the grant.
 */
#ifndef DXPU_SHARE_H
#define DXPU_SHARE_H

#include <pthread.h>
#include <stddef.h>

#include "dxpu.h"

/* ---- the format of hook/SHARE.md, little endian ---- */

enum { SHARE_VERSION = 1, SHARE_GPUS = 16, SHARE_PAGE = 4096, SHARE_REQUESTS = 128, SHARE_PACKET = 16, SHARE_STARTED = 1, SHARE_TELLS = 1, SHARE_MAGIC = 0x48535844 };

#define SHARE_MOST ((uint64_t)1 << 50) /* bytes, of a message */

enum share_type {
	SHARE_HELLO = 1, SHARE_ALLOCATE, SHARE_FREE, SHARE_LAUNCH, SHARE_DONE, SHARE_IDLE, SHARE_FAILED, SHARE_EXIT, SHARE_HOLDS, SHARE_USAGE, SHARE_CONTEXT,
	SHARE_WELCOME = 65, SHARE_GRANTED, SHARE_REFUSED, SHARE_PERMIT, SHARE_END, SHARE_REJECT,
};

struct share_message {
	uint32_t type, gpu;
	uint64_t id, bytes, arg[5];
};

enum share_gate { SHARE_OPEN, SHARE_ASKED, SHARE_HELD };
enum { SHARE_CLOSED = 1, SHARE_ENDS = 2 }; /* flags of the page */

struct share_gpu {
	uint8_t uuid[16];
	uint32_t domain, address;
	_Atomic uint32_t gate, window;
	_Atomic uint64_t limit, used; /* bytes; no limit: no process may use the GPU */
	_Atomic uint32_t compute;     /* parts per million */
	_Atomic uint32_t credit;      /* launches in flight that need no permit */
	uint8_t reserved[72];
};

struct share_page {
	uint32_t magic, version;
	_Atomic uint32_t sequence, flags;
	_Atomic uint64_t heartbeat;      /* CLOCK_MONOTONIC, ns */
	_Atomic uint64_t silence, grace; /* ns */
	_Atomic uint64_t agent;
	uint32_t gpus;
	_Atomic uint32_t processes; /* of the share */
	uint8_t reserved[8];
	struct share_gpu gpu[SHARE_GPUS];
	uint8_t rest[SHARE_PAGE - 64 - SHARE_GPUS * 128];
};

_Static_assert(sizeof(struct share_message) == 64, "a message has 64 bytes");
_Static_assert(offsetof(struct share_message, id) == 8 && offsetof(struct share_message, bytes) == 16 && offsetof(struct share_message, arg) == 24, "message");
_Static_assert(sizeof(struct share_gpu) == 128 && offsetof(struct share_gpu, domain) == 16 && offsetof(struct share_gpu, gate) == 24 &&
		       offsetof(struct share_gpu, limit) == 32 && offsetof(struct share_gpu, compute) == 48 && offsetof(struct share_gpu, credit) == 52,
	       "GPU of the page");
_Static_assert(sizeof(struct share_page) == SHARE_PAGE && offsetof(struct share_page, sequence) == 8 && offsetof(struct share_page, heartbeat) == 16 &&
		       offsetof(struct share_page, agent) == 40 && offsetof(struct share_page, gpus) == 48 && offsetof(struct share_page, gpu) == 64,
	       "page");

/* ---- share_lock.c ---- */

/*
 * Guards the connection, the ledger's totals and the launches in flight. A thread that has
 * the lock is not cancelled, also while it waits for an answer or a change.
 */
void dxpu_share_lock(void);
void dxpu_share_unlock(void);
void dxpu_share_await_locked(pthread_cond_t *c);

/* Whether this thread has the lock: a handler of a signal may ask. */
bool dxpu_share_has_lock(void);
void dxpu_share_lock_forget(void);

/* ---- share.c: the process and its connection ---- */

enum share_state { SHARE_OFF, SHARE_ON, SHARE_OVER };

extern _Atomic(enum share_state) dxpu_share_state;

/* The page of the agent. It is mapped while the state is not "off". */
extern const struct share_page *dxpu_share_page;

/* Reasons to hold all launches, beside the gates: bits. */
enum { HOLD_AGENT = 1, HOLD_END = 2 };
extern atomic_uint dxpu_share_hold;

/*
 * Connects to the agent after cuInit. Returns CUDA_SUCCESS, or the result that cuInit
 * returns without an agent.
 */
CUresult dxpu_share_activate(void);
void dxpu_share_exit(void);
void dxpu_share_in_child(void);

/* Whether the agent of the connection knows CONTEXT. */
extern bool dxpu_share_told_contexts; /* guarded by the lock */

/* Counts the connections; an answer is worth nothing on a later one. */
extern unsigned dxpu_share_connection;

/* Whether the agent is there; without it the page's policy applies. */
bool dxpu_share_up_locked(void);

/*
 * Sends a request and waits for its answer, with the lock released. Returns GRANTED,
 * REFUSED or PERMIT, or 0 if the connection was lost. It chooses the ID.
 */
uint32_t dxpu_share_ask_locked(struct share_message *m);

/* Sends a message without an answer; false if it has to be repeated later. */
bool dxpu_share_tell_locked(const struct share_message *m);

/*
 * Leaves a report to the library's thread, which sends several in one packet before any
 * other message; false if it has to be repeated later. Only for agents that give credit:
 * older ones read packets of one message.
 */
bool dxpu_share_report_locked(const struct share_message *m);
void dxpu_share_send_reports_locked(void);

/* A new ID of a request or launch. */
uint64_t dxpu_share_id_locked(void);

/* Wakes the library's thread, or the threads that wait for a gate. */
void dxpu_share_wake(void);

/* Whether the library's thread looks at the launches in flight soon, without being woken. */
extern bool dxpu_share_looks; /* guarded by the lock */
void dxpu_share_changed_locked(void);
void dxpu_share_wait_locked(void);

/* ---- share_socket.c ---- */

/* Connects to the socket of DXPU_SHARE; negative: errno says why not. */
int dxpu_share_dial(void);

/*
 * Maps the page of a WELCOME in the place of an earlier one, so that threads may look
 * at it at any time. Returns whether it is a page of this version.
 */
bool dxpu_share_map_page(int page_fd);

/*
 * Whether no process of the share can have gone on alone since the WELCOME: the agent beats
 * at least each half of the silence, or has another number afterwards. A grant is void
 * otherwise, because the agent did not know the memory of those processes.
 */
bool dxpu_share_page_current(void);

/* Receives one message; 0: none now, negative: the connection is lost. */
int dxpu_share_receive(int fd, struct share_message *m, int *page_fd);

/* ---- share_ledger.c: memory by owner ---- */

/*
 * Takes bytes of a GPU's memory from the share: CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY.
 * A negative gpu is no part of the share.
 */
CUresult dxpu_share_take(int gpu, uint64_t bytes);
void dxpu_share_give(int gpu, uint64_t bytes);

/* Counts bytes that the agent has granted, or that the process may take alone. */
void dxpu_share_charge_locked(int gpu, uint64_t bytes);

/* Tells the agent that the process makes a context on a GPU: its first one there is told. */
void dxpu_share_opens(int gpu);

/* Tells a new connection what the process holds; sends what could not be sent. */
void dxpu_share_restate_locked(void);
void dxpu_share_flush_locked(void);

/* The connection is lost: from now on the process keeps its own account. */
void dxpu_share_alone_locked(void);

enum owned { OWNED_POINTER, OWNED_ARRAY, OWNED_HANDLE, OWNED_MAPPING, OWNED_GRAPH, OWNED_LIMIT };

/* Something that holds memory. */
struct owner {
	enum owned kind;
	uintptr_t key;
	CUcontext context; /* whose end frees it; NULL: none */
	int gpu;
	uint64_t bytes;      /* charged */
	uint64_t size;       /* of a mapping: its range */
	uintptr_t other;     /* of a mapping: its handle; of a pointer: the number of its pool */
	unsigned references; /* of a handle: references and mappings */
	struct owner *next;
};

/* Adds a copy. If there is no memory for it, the charge stays until the process ends. */
void dxpu_share_add(const struct owner *o);

/* Removes and copies the owner of a key; false: unknown. */
bool dxpu_share_remove(enum owned kind, uintptr_t key, struct owner *o);

/* Runs f on the owner of a key under the ledger's lock; false: unknown. */
bool dxpu_share_change(enum owned kind, uintptr_t key, void (*f)(struct owner *, void *), void *arg);

/* Removes the owners that match; the caller gives back or adds each. */
struct owner *dxpu_share_detach(bool (*match)(const struct owner *, const void *), const void *arg);

/* Ends detached owners: gives their memory back, or adds them again. */
void dxpu_share_settle(struct owner *list, bool gone);

/* Drops one reference; true: it was the last, and the owner is removed and copied. */
bool dxpu_share_unreference(enum owned kind, uintptr_t key, struct owner *o);
void dxpu_share_ledger_forget(void);

/* The limit of a GPU and what the share has left of it, in bytes. */
void dxpu_share_room(int gpu, uint64_t *total, uint64_t *left);

/* ---- share_gate.c: launches ---- */

struct share_launch {
	int gpu; /* -1: the launch was not asked for */
	uint64_t id;
	CUevent start, end;
	unsigned connection; /* that gave the permit */
	CUcontext context;
	CUstream stream;
};

/* What a launch starts. */
struct share_work {
	CUfunction function; /* NULL: unknown */
	uint64_t blocks, threads, kernels;
};

/* Waits at the gate, if it is not open, and afterwards follows the launch. */
CUresult dxpu_share_begin_slow(struct share_launch *l, CUstream s, int thread, const struct share_work *w);
void dxpu_share_follow(struct share_launch *l, CUresult result);

/* Whether no process of the share may use a GPU: it has left the share, or failed. */
static inline bool dxpu_share_is_shut(int gpu)
{
	return atomic_load_explicit(&dxpu_share_page->gpu[gpu].limit, memory_order_relaxed) == 0;
}

/* Whether launches need no permit on any GPU: one load for each. */
static inline bool dxpu_share_is_open(void)
{
	const struct share_page *p = dxpu_share_page;

	if (atomic_load_explicit(&dxpu_share_hold, memory_order_relaxed))
		return false;
	for (uint32_t i = 0; i < p->gpus; i++) {
		if (atomic_load_explicit(&p->gpu[i].gate, memory_order_relaxed) != SHARE_OPEN && !dxpu_share_is_shut((int)i))
			return false;
	}
	return true;
}

/* Functions of the gates of gate.h. */
void dxpu_share_before_copy(void);
void dxpu_share_before_wait(void);

/*
 * For the library's thread: finds completed launches. Returns whether it is to look again
 * soon: some are in flight, or were a moment ago.
 */
bool dxpu_share_poll_locked(void);

/* Whether the agent is to hear of ends at once: the program waits, or a turn may be over. */
bool dxpu_share_urgent_locked(void);

/* Tells the agent of launches that went through an open gate, and forgets them. */
void dxpu_share_usage_locked(void);
void dxpu_share_usage_forget(void);

/* Forgets the launches in flight of a context that ends, NULL: of all. */
void dxpu_share_flights_forget_locked(CUcontext c);

/* Sends what could not be sent. */
void dxpu_share_flights_flush_locked(void);

/* ---- share_context.c: devices and contexts ---- */

enum { NOT_IN_SHARE = -1, NO_CONTEXT = -2, UNCOUNTED = -3 };

/* Compares the devices with the page. */
void dxpu_share_devices(void);

/* Index in the page of a device, or NOT_IN_SHARE: also if it is shut. */
int dxpu_share_gpu(CUdevice d);

/* The device with an index in the page. */
CUdevice dxpu_share_device(int gpu);

/* That of the current context's device, or NO_CONTEXT. */
int dxpu_share_current(void);

CUcontext dxpu_share_context(void); /* the current one, or NULL */

/*
 * Makes the context of a stream current, in which its work and memory are, and returns
 * the one to leave to. Both are the same for the default streams.
 */
CUcontext dxpu_share_enter(CUstream s);
void dxpu_share_leave(CUcontext was);

/* The GPU of a pool that the program did not create, which is a device's own. */
int dxpu_share_pool_gpu(void *pool);

/* Waits for the work of all contexts of the process. */
void dxpu_share_synchronize(void);
void dxpu_share_contexts_forget(void);

/* ---- share_pool.c ---- */

/* Returns memory that pools keep unused, to make room on a GPU. */
void dxpu_share_pools_trim(int gpu);

/* Gives back what the pools have given back to the driver. */
void dxpu_share_pools_settle(void);

/* The last step of freeing memory of a pool. */
void dxpu_share_pool_freed(const struct owner *o);
void dxpu_share_pools_forget(void);

/* ---- share_graph.c ---- */

/* Gives back what the driver has given back of the memory of destroyed graphs. */
void dxpu_share_graphs_settle(void);
void dxpu_share_graphs_forget(void);

/* ---- share_end.c: the graceful exit ---- */

/* The agent asks the process to end within the grace, in ns. */
void dxpu_share_end_asked(uint64_t grace);

/* Takes the next step if it is due. */
void dxpu_share_end_locked(void);
void dxpu_share_end_forget(void);

/* ---- for wrappers ---- */

/* Begins the definition of a wrapper. */
#define SHARE(symbol, ...) \
	CUresult share_##symbol(__VA_ARGS__); \
	CUresult share_##symbol(__VA_ARGS__)

/* The driver's function behind the wrapper of the same name. */
#define BEHIND(symbol) REAL(__typeof__(&share_##symbol), symbol)

/* Whether the call counts: it does not if it comes from the driver or the library. */
static inline bool dxpu_share_is_on(void)
{
	return atomic_load_explicit(&dxpu_share_state, memory_order_acquire) == SHARE_ON && dxpu_depth == 0;
}

/*
 * Takes memory for a call of the program: CUDA_SUCCESS, or what the call returns.
 * Before cuInit and in the child of a fork the driver refuses such calls, and so does
 * the library. A gpu of UNCOUNTED takes nothing.
 */
CUresult dxpu_share_before(int gpu, uint64_t bytes);

/*
 * Ends that call: with the driver's success, *o becomes an owner and has its real size,
 * which may be more; undo frees it if there is no room for that. Otherwise what was
 * taken, o->bytes, is given back.
 */
CUresult dxpu_share_after(struct owner *o, CUresult result, uint64_t real, CUresult (*undo)(uintptr_t));

/* Frees: the owner of the key leaves the ledger, and comes back if the driver fails. */
struct freeing {
	bool known;
	struct owner o;
};

void dxpu_share_free(struct freeing *f, enum owned kind, uintptr_t key);
CUresult dxpu_share_freed(struct freeing *f, CUresult result);

#endif
