/* Prints a page and a message from standard input, and the types, as C reads them. */
#include <stdio.h>

#include "share.h"

int main(void)
{
	static struct share_page p;
	struct share_message m;
	const struct share_gpu *g = &p.gpu[SHARE_GPUS - 1];

	if (fread(&p, sizeof p, 1, stdin) != 1 || fread(&m, sizeof m, 1, stdin) != 1 || p.magic != SHARE_MAGIC)
		return 1;
	printf("page %u flags %u silence %lu grace %lu agent %lu gpus %u\n", p.version, p.flags, p.silence, p.grace, p.agent, p.gpus);
	printf("gpu %u %u %u gate %u window %u limit %lu used %lu compute %u\n", g->uuid[15], g->domain, g->address, g->gate, g->window, g->limit, g->used, g->compute);
	printf("message %u %u %lu %lu %lu %lu\n", m.type, m.gpu, m.id, m.bytes, m.arg[0], m.arg[4]);
	printf("types %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d\n", SHARE_HELLO, SHARE_ALLOCATE, SHARE_FREE, SHARE_LAUNCH, SHARE_DONE, SHARE_IDLE,
	       SHARE_FAILED, SHARE_EXIT, SHARE_HOLDS, SHARE_USAGE, SHARE_WELCOME, SHARE_GRANTED, SHARE_REFUSED, SHARE_PERMIT, SHARE_END, SHARE_REJECT);
	return 0;
}
