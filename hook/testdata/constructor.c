/* A library whose constructor calls the program that loads it. */
#include <dlfcn.h>

__attribute__((constructor)) static void construct(void)
{
	void (*f)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "in_constructor");

	if (f)
		f();
}
