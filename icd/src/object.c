#include <stdlib.h>
#include <string.h>

#include "driver.h"

pthread_mutex_t dxpu_lock = PTHREAD_MUTEX_INITIALIZER;

void *object_new(enum kind kind, size_t size)
{
	struct object *o = calloc(1, size);

	if (o) {
		o->dispatch = &dxpu_dispatch;
		o->kind = kind;
		o->references = o->held = 1;
	}
	return o;
}

int object_is(const void *o, enum kind kind) { return o && ((const struct object *)o)->kind == kind; }

void object_retain(void *o)
{
	pthread_mutex_lock(&dxpu_lock);
	((struct object *)o)->references++;
	pthread_mutex_unlock(&dxpu_lock);
}

void object_hold(void *o)
{
	pthread_mutex_lock(&dxpu_lock);
	((struct object *)o)->references++;
	((struct object *)o)->held++;
	pthread_mutex_unlock(&dxpu_lock);
}

cl_uint object_held(void *o)
{
	pthread_mutex_lock(&dxpu_lock);
	int n = ((struct object *)o)->held;
	pthread_mutex_unlock(&dxpu_lock);
	return (cl_uint)n;
}

int object_let(void *o)
{
	struct object *object = o;

	pthread_mutex_lock(&dxpu_lock);
	int left = object->held > 0 ? --object->held : -1;
	pthread_mutex_unlock(&dxpu_lock);
	return left;
}

int object_drop(void *o)
{
	pthread_mutex_lock(&dxpu_lock);
	int last = --((struct object *)o)->references == 0;
	pthread_mutex_unlock(&dxpu_lock);
	return last;
}

cl_int give(size_t room, void *out, size_t *size, const void *value, size_t n)
{
	if (out && room < n)
		return CL_INVALID_VALUE;
	if (out && n > 0)
		memcpy(out, value, n);
	if (size)
		*size = n;
	return CL_SUCCESS;
}

int properties_find(const struct properties *p, uint32_t param, uint32_t index, struct property *out)
{
	size_t at = 0;

	while (p->size - at >= 16) {
		struct property found;
		memcpy(&found.param, p->bytes + at, 4);
		memcpy(&found.index, p->bytes + at + 4, 4);
		memcpy(&found.size, p->bytes + at + 8, 8);
		at += 16;
		if (found.size > p->size - at)
			return 0;
		found.value = p->bytes + at;
		if (found.param == param && found.index == index) {
			*out = found;
			return 1;
		}
		size_t padded = ((size_t)found.size + 7) & ~(size_t)7;
		if (padded > p->size - at)
			return 0;
		at += padded;
	}
	return 0;
}

int properties_take(struct properties *p, const void *bytes, size_t n)
{
	p->bytes = malloc(n ? n : 1);
	if (!p->bytes)
		return -1;
	memcpy(p->bytes, bytes, n);
	p->size = n;
	return 0;
}

cl_int destructors_add(struct destructor **list, void *call, void *data)
{
	struct destructor *d = malloc(sizeof *d);

	if (!d)
		return CL_OUT_OF_HOST_MEMORY;
	d->call = (void(CL_CALLBACK *)(void *, void *))call;
	d->data = data;
	pthread_mutex_lock(&dxpu_lock);
	d->next = *list;
	*list = d;
	pthread_mutex_unlock(&dxpu_lock);
	return CL_SUCCESS;
}

void destructors_run(struct destructor **list, void *object)
{
	while (*list) {
		struct destructor *d = *list;
		*list = d->next;
		d->call(object, d->data);
		free(d);
	}
}
