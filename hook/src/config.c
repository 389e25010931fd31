#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dxpu.h"

struct config dxpu_config;

#define MAX_TIME 1e9 /* ns */

bool dxpu_parse_time(const char *text, double *ns)
{
	char *end;
	double v = strtod(text, &end);
	static const struct { const char *unit; double ns; } units[] = {
		{"ns", 1}, {"us", 1e3}, {"\xc2\xb5s", 1e3}, {"ms", 1e6}, {"s", 1e9},
	};

	if (end == text || !(v >= 0))
		return false;
	if (v == 0 && *end == '\0') {
		*ns = 0;
		return true;
	}
	for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
		if (strcmp(end, units[i].unit) == 0 && v * units[i].ns <= MAX_TIME) {
			*ns = v * units[i].ns;
			return true;
		}
	}
	return false;
}

static void complain(const char *name, const char *value, const char *want)
{
	fprintf(stderr, "dxpu: %s=%s: want %s; ignored\n", name, value, want);
}

static const char *set(const char *name)
{
	const char *v = secure_getenv(name);

	return v && *v ? v : NULL;
}

/* The program may change or free the string that getenv returned. */
static const char *set_copy(const char *name)
{
	const char *v = set(name);

	return v ? strdup(v) : NULL;
}

static void get_time(const char *name, double *to)
{
	const char *v = set(name);

	if (v && !dxpu_parse_time(v, to))
		complain(name, v, "a time up to 1s with a unit, such as 6.8us");
}

static void get_number(const char *name, double *to, double low, double high)
{
	const char *v = set(name);
	char *end;
	double x;

	if (!v)
		return;
	x = strtod(v, &end);
	if (end == v || *end || !(x >= low && x <= high)) {
		char want[64];

		snprintf(want, sizeof(want), "a number from %.10g to %.10g", low, high);
		complain(name, v, want);
	} else {
		*to = x;
	}
}

static bool get_flag(const char *name, bool def)
{
	const char *v = set(name);

	if (!v)
		return def;
	if (strcmp(v, "1") == 0)
		return true;
	if (strcmp(v, "0") == 0)
		return false;
	complain(name, v, "0 or 1");
	return def;
}

static void get_policy(const char *name, enum graph_policy *to)
{
	const char *v = set(name);

	if (!v || strcmp(v, "launch") == 0)
		*to = GRAPH_LAUNCH;
	else if (strcmp(v, "node") == 0)
		*to = GRAPH_NODE;
	else if (strcmp(v, "none") == 0)
		*to = GRAPH_NONE;
	else
		complain(name, v, "launch, node or none");
}

/*
 * The socket of the share, NULL: none. A container has its share's folder in a fixed place,
 * so that a shell in it with another environment is in the share as well.
 */
static const char *share_socket(void)
{
	static const char folder[] = "/run/dxpu-share", inside[] = "/run/dxpu-share/agent.sock";

	return access(folder, F_OK) == 0 ? inside : set_copy("DXPU_SHARE");
}

void dxpu_configure(void)
{
	struct config *c = &dxpu_config;
	double rtt = -1, scratch = 4 << 20, rate = 0;

	/* The paper's servers and V100 (Table 7, section 3.4.3). */
	c->native = 1200;
	c->tags = 140;
	c->mrrs = 128;
	c->kernel_cost = c->copy_cost = -1;
	get_time("DXPU_RTT", &rtt);
	get_time("DXPU_NATIVE_RTT", &c->native);
	get_number("DXPU_TAGS", &c->tags, 1, 15360);
	get_number("DXPU_MRRS", &c->mrrs, 128, 4096);
	get_number("DXPU_NATIVE_GBPS", &rate, 0.001, 10000);
	get_time("DXPU_KERNEL_COST", &c->kernel_cost);
	get_time("DXPU_COPY_COST", &c->copy_cost);
	get_number("DXPU_SCRATCH", &scratch, 65536, 1 << 30);
	get_policy("DXPU_GRAPHS", &c->graphs);
	c->native_rate = rate; /* GB/s is bytes per ns */
	c->scratch = (size_t)scratch;
	c->calibrate = get_flag("DXPU_CALIBRATE", true);
	c->syncs = get_flag("DXPU_SYNCS", false);
	c->verbose = get_flag("DXPU_VERBOSE", false);
	c->trace = set_copy("DXPU_TRACE");
	c->stats = set_copy("DXPU_STATS");
	c->share = share_socket();
	if (c->share && (rtt >= 0 || c->trace || c->stats)) {
		fprintf(stderr, "dxpu: the process is in a share; latency, trace and statistics are ignored\n");
		rtt = -1;
		c->trace = c->stats = NULL;
	}
	c->inject = rtt >= 0;
	c->rtt = c->inject ? rtt : c->native;
	if (c->inject && c->rtt < c->native) {
		fprintf(stderr, "dxpu: DXPU_RTT is below DXPU_NATIVE_RTT; no latency is added\n");
		c->rtt = c->native;
	}
	c->on = c->share || c->inject || c->trace || c->stats;
}
