#include <stdlib.h>
#include <string.h>

#include "command.h"

/* mapping_release ends a use of a mapping: the buffer's, or that of a command. */
void mapping_release(struct mapping *m)
{
	pthread_mutex_lock(&dxpu_lock);
	int last = --m->references == 0;
	pthread_mutex_unlock(&dxpu_lock);
	if (!last)
		return;
	if (m->owned)
		free(m->pointer);
	free(m);
}

cl_uint mapping_count(cl_mem m)
{
	pthread_mutex_lock(&dxpu_lock);
	cl_uint n = m->maps;
	pthread_mutex_unlock(&dxpu_lock);
	return n;
}

/* mapping_new makes a mapping of n bytes, which are at an offset of the program's own memory. */
struct mapping *mapping_new(cl_mem m, cl_map_flags flags, size_t offset, size_t n)
{
	struct mapping *map = calloc(1, sizeof *map);

	if (!map)
		return NULL;
	*map = (struct mapping){.offset = offset, .size = n, .flags = flags, .owned = !m->host, .references = 1};
	if (m->host)
		map->pointer = (char *)m->host + offset;
	else if (posix_memalign(&map->pointer, 4096, n)) {
		free(map);
		return NULL;
	}
	return map;
}

cl_int map_check(cl_mem m, cl_map_flags flags)
{
	const cl_map_flags writes = CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION;

	if (flags & ~(CL_MAP_READ | writes) || (flags & CL_MAP_WRITE_INVALIDATE_REGION && flags & (CL_MAP_READ | CL_MAP_WRITE)))
		return CL_INVALID_VALUE;
	if ((flags & CL_MAP_READ && m->flags & (CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS)) ||
	    (flags & writes && m->flags & (CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS)))
		return CL_INVALID_OPERATION;
	return CL_SUCCESS;
}

/* fill starts to fill a mapping, and adds it to its memory object. */
static cl_int fill(struct command *c, struct mapping *map, int blocking, cl_event *event)
{
	cl_mem m = c->mem;

	/* The event keeps both until the bytes are there. */
	pthread_mutex_lock(&dxpu_lock);
	map->references++;
	m->object.references++;
	map->next = m->mappings;
	m->mappings = map;
	m->maps++;
	pthread_mutex_unlock(&dxpu_lock);
	c->event->map = map;
	c->event->mem = m;
	return map->flags & CL_MAP_WRITE_INVALIDATE_REGION ? end_empty(c, blocking, event) : end(c, blocking, event);
}

/* unlist takes the mapping at a pointer out of a buffer's list. */
static struct mapping *unlist(cl_mem m, const void *pointer)
{
	struct mapping **at, *map;

	pthread_mutex_lock(&dxpu_lock);
	for (at = &m->mappings; *at && (*at)->pointer != pointer;)
		at = &(*at)->next;
	map = *at;
	if (map) {
		*at = map->next;
		m->maps--;
	}
	pthread_mutex_unlock(&dxpu_lock);
	return map;
}

cl_int map_run(struct command *c, struct mapping *map, int blocking, cl_event *event)
{
	cl_int code = begin(c);

	if (code) {
		mapping_release(map);
		return code;
	}
	void *pointer = c->host = map->pointer;
	code = fill(c, map, blocking, event);
	if (code && unlist(c->mem, pointer))
		mapping_release(map);
	return code;
}

cl_int map_buffer(struct command *c, cl_bool blocking, cl_map_flags flags, cl_event *event)
{
	cl_int code = c->size ? map_check(c->mem, flags) : CL_INVALID_VALUE;

	if (code)
		return code;
	struct mapping *map = mapping_new(c->mem, flags, c->offset, c->size);
	return map ? map_run(c, map, (int)blocking, event) : CL_MAP_FAILURE;
}

void *CL_API_CALL dxpu_EnqueueMapBuffer(cl_command_queue q, cl_mem m, cl_bool blocking, cl_map_flags flags, size_t offset, size_t n,
					       cl_uint waits, const cl_event *list, cl_event *event, cl_int *error)
{
	struct command c = {
		.queue = q, .type = CL_COMMAND_MAP_BUFFER, .waits = waits, .list = list, .kind = COMMAND_MOVE, .mem = m,
		.offset = offset, .size = n,
	};
	cl_int code = check_range(q, m, offset, n);

	if (!code)
		code = map_buffer(&c, blocking, flags, event);
	if (error)
		*error = code;
	return code ? NULL : c.host;
}

cl_int unmap(struct command *c, cl_mem m, void *pointer, cl_event *event)
{
	struct packet p;
	cl_int code = begin(c);

	if (code)
		return code;
	struct mapping *map = unlist(m, pointer);
	if (!map) {
		abandon(c, CL_INVALID_VALUE);
		return CL_INVALID_VALUE;
	}
	c->map = map;
	if (!(map->flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION))) {
		packet_start(&p, PACKET_MARKER, c->queue->handle);
		return simple(c, &p, event);
	}
	/* If the bytes that the program maps are on their way, the write waits for them (part_settle). */
	c->mem = m;
	c->write = 1;
	c->offset = map->offset;
	c->size = map->size;
	c->pixels = map->pixels;
	if (m->image)
		c->kind = COMMAND_MOVE_PIXELS;
	c->host = map->pointer;
	return end(c, 0, event);
}

cl_int CL_API_CALL dxpu_EnqueueUnmapMemObject(cl_command_queue q, cl_mem m, void *pointer, cl_uint waits, const cl_event *list,
						     cl_event *event)
{
	struct command c = {.queue = q, .type = CL_COMMAND_UNMAP_MEM_OBJECT, .waits = waits, .list = list, .kind = COMMAND_MOVE};

	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	if (!object_is(m, KIND_MEM))
		return CL_INVALID_MEM_OBJECT;
	return m->context == q->context ? unmap(&c, m, pointer, event) : CL_INVALID_CONTEXT;
}
