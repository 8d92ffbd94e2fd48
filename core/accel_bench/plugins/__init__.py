"""Find, check, activate and describe plugins; write a new one."""
