/* The output of kernels: printf. */
#include <unistd.h>

#include "driver.h"

void output_show(cl_context c)
{
	enum { ROOM = 64 << 10 };
	struct channel *ch = c->device->channel;
	uint32_t length = 1;

	/* A kernel that is not complete may print later, so this stays as it is. */
	if (!__atomic_load_n(&c->prints, __ATOMIC_RELAXED) || !(channel_features(ch) & FEATURE_IMAGES))
		return;
	while (length > 0) {
		struct packet p;
		struct staging s;
		if (channel_reserve(ch, ROOM, &s))
			return;
		packet_start(&p, PACKET_OUTPUT, 0);
		if (channel_call(ch, &p, &s, &length))
			length = 0;
		for (uint32_t done = 0; done < length;) {
			ssize_t n = write(STDOUT_FILENO, s.mirror + done, length - done);
			if (n <= 0)
				break;
			done += (uint32_t)n;
		}
		channel_free(ch, &s);
	}
}
