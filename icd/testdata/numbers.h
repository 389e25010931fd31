/* Random numbers, and hashes, of the random programs: the same for a seed on every platform. */
#ifndef NUMBERS_H
#define NUMBERS_H
#include <stddef.h>
#include <stdint.h>

/* next_number returns the next number of a state: splitmix64. */
static inline uint64_t next_number(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* hash returns the FNV-1a hash of bytes. */
static inline uint64_t hash(const void *bytes, size_t n)
{
	const unsigned char *b = bytes;
	uint64_t h = 0xcbf29ce484222325u;

	for (size_t i = 0; i < n; i++)
		h = (h ^ b[i]) * 0x100000001b3u;
	return h;
}

#endif
